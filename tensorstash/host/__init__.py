"""Memory and threads of the host, and the compiled functions."""
