"""The adapter of the reference engine."""
