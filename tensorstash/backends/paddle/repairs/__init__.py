"""Repairs of what Paddle does with hooks in force."""
