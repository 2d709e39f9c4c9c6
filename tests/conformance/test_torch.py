from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.torch import TorchLab


class TestTorch(BackendSuite):
    lab = TorchLab().on("cpu")
