"""The graph: recording, hooks, saved tensors, and the walk back."""
