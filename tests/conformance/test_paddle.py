from tensorstash.testing import BackendSuite
from tensorstash.testing.paddle_lab import PaddleLab


class TestPaddle(BackendSuite):
    lab = PaddleLab()
