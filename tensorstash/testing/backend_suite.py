"""The contract of a backend, as one class of tests."""

from tensorstash.testing.contract.budgets import Bounded
from tensorstash.testing.contract.cleanup import NothingLeftBehind
from tensorstash.testing.contract.dedup import OneCopy
from tensorstash.testing.contract.effects import SaysWhenNothing
from tensorstash.testing.contract.failures import NothingLostQuietly
from tensorstash.testing.contract.in_place import InPlaceSafety
from tensorstash.testing.contract.kept import NeverStashed
from tensorstash.testing.contract.ownership import Ownership
from tensorstash.testing.contract.refusals import FailClosed
from tensorstash.testing.contract.tensors import SameTensor
from tensorstash.testing.contract.training import SameTraining
from tensorstash.testing.contract.unpacking import AnyOrderAnyNumber


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
    :meth:`wrap` to test something else than the registered backend. Checks that a framework cannot pass are declared
    in :attr:`Lab.gaps <tensorstash.testing.lab.Lab.gaps>`, with the reason.
    """

    def test_every_declared_gap_names_a_check(self) -> None:
        for name in self.lab.gaps:
            assert hasattr(self, name.partition("[")[0]), f"{name} is no check of this suite"
