"""Recipes of PyTorch's operations: one rule per operation of its graph."""
