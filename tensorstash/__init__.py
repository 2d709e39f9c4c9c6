"""Saved activations of PyTorch and PaddlePaddle, moved, compressed, quantized or spilled by policy."""
