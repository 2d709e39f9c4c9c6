"""What the command line asks of a framework; each is imported in its own file only."""
