"""One lab per framework; each imports its framework."""
