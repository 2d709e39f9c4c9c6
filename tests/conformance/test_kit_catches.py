from pathlib import Path

import broken_codecs  # noqa: F401
import broken_effects  # noqa: F401
import broken_failures  # noqa: F401
import broken_ownership  # noqa: F401
import broken_recipes  # noqa: F401
import broken_stores  # noqa: F401
import broken_training  # noqa: F401
import paddle
import pytest
from planted import FAULTS, NOTICED, Fault, checks_of, failure_of

from tensorstash.testing import BackendSuite

PLANTED = [
    pytest.param(fault, check, id=f"{fault.suite.__name__}-{check.removeprefix('test_')}")
    for faults in FAULTS.values()
    for fault in faults
    for check in fault.checks
]

SOUND: set[tuple[object, ...]] = set()  # checks of suites without a fault that have passed


# A check that notices a fault of a wrap may end before it has called the model.
@pytest.mark.filterwarnings("ignore:nothing was seen. a wrapped model was never called:tensorstash.TensorStashWarning")
@pytest.mark.parametrize(("fault", "check"), PLANTED)
def test_planted_fault_is_noticed(fault: Fault, check: str, tmp_path: Path) -> None:
    control = fault.suite.__bases__[0], check, tuple(fault.arguments.items())
    if control not in SOUND:
        sound = failure_of(control[0], check, tmp_path / "sound", fault.arguments)
        assert sound is None, f"the check fails without the fault: {sound!r}"
        SOUND.add(control)
    # Our hooks, which would hide a fault, leave Paddle when it saves something after the threads that used them.
    paddle.exp(paddle.to_tensor([1.0], stop_gradient=False))
    failure = failure_of(fault.suite, check, tmp_path / "faulty", fault.arguments)
    assert failure is not None, f"{check} does not notice {fault.suite.__name__}"
    assert isinstance(failure, (*NOTICED, *fault.raises)), f"noticed by accident: {failure!r}"


@pytest.mark.parametrize(("suite", "faults"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_check_has_a_planted_fault(suite: type, faults: list[Fault]) -> None:
    planted = {check for fault in faults for check in fault.checks}
    assert planted == checks_of(suite)


def test_every_contract_line_has_a_planted_fault() -> None:
    lines = {check.split("_")[1] for fault in FAULTS[BackendSuite] for check in fault.checks}
    assert {f"line{number:02}" for number in range(1, 13)} <= lines
