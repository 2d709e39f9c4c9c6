"""Imports that a program of a test needs, for tests that still name them."""

PROGRAMS = {"torch": ("torch", "torch._dynamo"), "paddle": ("paddle",)}
