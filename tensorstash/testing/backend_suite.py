"""The contract of a backend, as one class of tests."""

from tensorstash.testing.contract.endings import FailClosed, NothingLeftBehind, NothingLostQuietly, SaysWhenNothing
from tensorstash.testing.contract.graph import InPlaceSafety, Ownership
from tensorstash.testing.contract.memory import Bounded, NeverStashed, OneCopy
from tensorstash.testing.contract.results import AnyOrderAnyNumber, SameTensor, SameTraining


class BackendSuite(
    SameTraining,
    SameTensor,
    AnyOrderAnyNumber,
    InPlaceSafety,
    Ownership,
    OneCopy,
    NeverStashed,
    NothingLostQuietly,
    Bounded,
    NothingLeftBehind,
    FailClosed,
    SaysWhenNothing,
):
    """Every line of the contract, on every device of a lab.

    A backend's test is a subclass that names its lab; pytest collects the inherited checks::

        from tensorstash.testing import BackendSuite
        from mybackend.testing import MyLab


        class TestMyBackend(BackendSuite):
            lab = MyLab()

    Checks are named ``test_line<number>_<behaviour>`` after the contract's lines. Override :meth:`stash` and
    :meth:`wrap` to test something else than the registered backend.
    """
