from tensorstash.testing import BackendSuite
from tensorstash.testing.torch_lab import TorchLab


class TestTorch(BackendSuite):
    lab = TorchLab(("cpu",))
