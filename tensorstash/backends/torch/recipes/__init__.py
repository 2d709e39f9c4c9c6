"""Recipes of PyTorch's operations: one rule per operation of its graph."""

from tensorstash.backends.torch.recipes.arithmetic import ARITHMETIC
from tensorstash.backends.torch.recipes.neural import NEURAL, normalizations
from tensorstash.backends.torch.recipes.rule import Rule
from tensorstash.backends.torch.recipes.views import VIEWS


def rules() -> dict[str, Rule]:
    """Return the rules of one session, by the name of the node that the operation leaves in the graph."""
    return {rule.node: rule for rule in (*ARITHMETIC, *NEURAL, *normalizations(), *VIEWS)}
