"""How operations of PyTorch are run again: one rule per operation of its graph."""

from collections.abc import Mapping
from types import MappingProxyType

from tensorstash.backends.torch.recipes.arithmetic import ARITHMETIC
from tensorstash.backends.torch.recipes.neural import NEURAL
from tensorstash.backends.torch.recipes.rule import Rule
from tensorstash.backends.torch.recipes.views import VIEWS

RULES: Mapping[str, Rule] = MappingProxyType({rule.node: rule for rule in (*ARITHMETIC, *NEURAL, *VIEWS)})
"""By the name of the node that the operation leaves in the graph."""
