import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Paddle warns about missing compilers while it is imported
    import paddle  # noqa: F401
