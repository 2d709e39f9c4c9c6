"""Memory and threads of the host, and what the processor was compiled for."""
