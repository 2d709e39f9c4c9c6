"""Recipes at work: saved tensors that are made again when backward needs them."""
