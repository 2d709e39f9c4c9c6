"""Exceptions of the reference engine; they derive from the built-in class that PyTorch raises in the same place."""


class DeviceError(RuntimeError):
    """Tensors of different devices met in one operation, or host code touched accelerator memory."""


class InplaceError(RuntimeError):
    """A tensor that the graph needs was modified in place, or may not be."""


class GraphReleasedError(RuntimeError):
    """Backward asked for saved tensors that an earlier backward has already freed."""


class HookError(RuntimeError):
    """A pack or unpack hook broke its contract, or hook scopes were used out of order."""
