"""Questions of the command line to a framework; each is imported in its own file only."""
