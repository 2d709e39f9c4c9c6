"""Recipes of Paddle's operations, found in its graph: one rule per operation."""
