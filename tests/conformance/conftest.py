import warnings
from contextlib import suppress

# Paddle warns about missing compilers while it is imported; it has no build for the newest Python.
with warnings.catch_warnings(), suppress(ModuleNotFoundError):
    warnings.simplefilter("ignore")
    import paddle  # noqa: F401
