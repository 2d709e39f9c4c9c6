"""Sizes of records."""

PIECE = 4 * 2**20
"""Bytes of a large record."""
