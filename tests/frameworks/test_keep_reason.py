"""Parameters, other leaves and views of both are kept, and the reason is the same in every framework."""

import numpy as np
import pytest


def views(lab, tensor):
    return [
        tensor.T,
        tensor[1:4],
        tensor[:, 1:3],
        tensor.T[:2],
        tensor.reshape(16),
        tensor.reshape(16).reshape(2, 8),
    ]


@pytest.fixture
def reason(framework):
    """Return the reason for a tensor in a scope of its own: Paddle looks up parameters again in each."""

    def of(tensor):
        with framework.backend.hooks(lambda tensor: None, lambda packed: None):
            return framework.backend.keep_reason(tensor)

    return of


def test_activations_plain_inputs_and_views_of_them_can_be_stashed(lab, reason):
    plain = lab.tensor(np.ones((4, 4), np.float32))
    activation = lab.tensor(np.ones((4, 4), np.float32), requires_grad=True) * 2.0
    for tensor in (plain, activation, *views(lab, plain), *views(lab, activation), activation.detach()):
        assert reason(tensor) is None


@pytest.mark.parametrize("trainable", [True, False], ids=["trained", "frozen"])
def test_parameters_and_their_views_are_kept(framework, lab, reason, trainable):
    weight = lab.parameter(np.ones((4, 4), np.float32), trainable=trainable)
    assert reason(weight) == "parameter"
    with framework.no_grad():
        silent = views(lab, weight)
    for view in (*views(lab, weight), *silent):
        assert reason(view) == "view of a parameter"
    assert reason(weight * 1.0) is None
