"""The adapter of PaddlePaddle."""
