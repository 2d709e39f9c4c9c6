"""The lab of each framework, made when it is first asked for."""

from functools import cache

from tensorstash.testing.lab import Lab

BACKENDS = ("reference", "torch", "paddle")


@cache
def lab_of(backend: str) -> Lab:
    from tensorstash.testing.paddle_lab import PaddleLab
    from tensorstash.testing.reference_lab import ReferenceLab
    from tensorstash.testing.torch_lab import TorchLab

    return {"reference": ReferenceLab, "torch": TorchLab, "paddle": PaddleLab}[backend]()
