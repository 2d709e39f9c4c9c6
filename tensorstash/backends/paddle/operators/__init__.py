"""Paddle's operators that read or write their saved tensors."""
