"""The contract: a class of checks for each of its lines, on every device of a lab."""
