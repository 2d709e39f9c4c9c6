from typing import Any

import pytest

from tensorstash.policies.limits import Limits
from tensorstash.testing import BackendSuite
from tensorstash.testing.labs.reference import ReferenceLab

OTHERWISE = (
    "line01_gradients_are_bitwise_those_without_hooks",
    "line01_parameters_after_training_are_bitwise_equal",
    "line01_a_lossy_codec_keeps_its_bound",
    "line01_lossy_policies_never_touch_integers",
    "line02_nan_payloads_signed_zeros_and_subnormals_survive",
    "line02_every_unpack_is_fresh_private_and_writable",
    "line03_handles_unpack_in_any_order_and_number",
    "line03_handles_unpack_on_any_thread_at_once",
    "line03_backward_inside_the_scope_or_on_another_thread",
    "line04_captured_bytes_are_immune",
    "line04_bytes_modified_before_they_are_captured_are_refused",
    "line05_backward_frees_every_slot_while_the_loss_lives",
    "line05_an_exception_in_backward_frees_every_slot",
    "line06_a_reused_address_is_another_payload",
    "line08_a_failed_step_leaves_no_slot_and_no_hook",
    "line09_a_budget_that_is_just_enough_is_enough",
    "line09_statistics_agree_with_the_store",
    "line10_scopes_of_other_threads_are_their_own",
)
"""Checks that threads or the compiled kernels can change the outcome of."""


class TestReference(BackendSuite):
    lab = ReferenceLab()


def otherwise_only(suite: type) -> Any:
    """Leave a suite the checks that are worth running in another way."""
    wanted = {f"test_{name}" for name in OTHERWISE}
    assert wanted <= set(dir(suite))
    for name in dir(suite):
        if name.startswith("test_") and name not in wanted:
            setattr(suite, name, None)
    return suite


@otherwise_only
class TestReferenceWithoutWorkers(BackendSuite):
    lab = ReferenceLab()
    limits = Limits(in_flight=0, ahead=0)


@otherwise_only
@pytest.mark.usefixtures("nothing_is_compiled")
class TestReferenceWithNothingCompiled(BackendSuite):
    lab = ReferenceLab()
