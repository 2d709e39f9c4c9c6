from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.paddle import PaddleLab


class TestPaddle(BackendSuite):
    lab = PaddleLab()
