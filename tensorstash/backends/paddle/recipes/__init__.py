"""How operations of Paddle are run again, found in its graph: one rule per operation."""
