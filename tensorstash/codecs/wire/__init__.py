"""Checks of payloads, and Zstandard on rows of bytes."""
