"""A table of Paddle's operators, and what runs them in layouts and types, plainly and under hooks."""
