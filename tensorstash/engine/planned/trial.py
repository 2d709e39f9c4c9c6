"""Plans that are held against one another on the clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from tensorstash.planner.decision import Decision
from tensorstash.planner.model import SavedClass
from tensorstash.planner.plan import BudgetPlan

ROUNDS = 3
"""Steps for which each plan is tried, taking turns."""

_MARGIN = 0.02
"""Part of a step by which a plan has to be faster to take the place of the one that was found to be the best."""

_TELLING = 0.1
"""Part of a step for which one plan has to occupy stores longer than another to tell what that costs."""


@dataclass
class Candidate:
    """A plan that is tried.

    Args:
        plan: it.
        seconds: of the steps under it.
        overran: whether more was held than there is room for.
        left: which part of a class's bytes it counts on codecs to leave in memory.
    """

    plan: BudgetPlan
    seconds: list[float] = field(default_factory=list)
    overran: bool = False
    left: Mapping[SavedClass, float] = field(default_factory=dict)
    tiers: Mapping[SavedClass, str] = field(init=False)

    def __post_init__(self) -> None:
        self.tiers = self.plan.tiers


def place_of(step: int, count: int) -> int:
    """Return which of so many plans a step is to try: all of them in each round, each time in another order."""
    return (step + step // count) % count


def fastest(candidates: Mapping[str, Candidate]) -> str:
    """Return the name of the plan to stay with.

    A machine that is busy with something else makes single steps slow, never fast. So another plan takes the place of
    the first one only if it was faster in every round, and by more than the first one differs from itself.

    Args:
        candidates: by name, tried for equally many rounds; the first is predicted to be the best.
    """
    fitting = [name for name, each in candidates.items() if not each.overran]
    if not fitting:
        return next(iter(candidates))
    best = fitting[0]
    for name in fitting[1:]:
        if _is_faster(candidates[name].seconds[:ROUNDS], candidates[best].seconds[:ROUNDS]):
            best = name
    return best


def share_of_stores(decision: Decision, candidates: Mapping[str, Candidate]) -> float:
    """Return by what part of the seconds for which stores are occupied the step was longer than predicted.

    The two plans that use stores the least and the most tell: the fastest step of each, since what else the machine
    does makes steps slow, never fast. 0 where they use them about as much.

    Args:
        decision: what was tried.
        candidates: by name, tried for equally many rounds.
    """
    found = {name: decision.found(name) for name in candidates}
    least, most = (choose(found, key=lambda name: found[name].link_s) for choose in (min, max))
    occupied = found[most].link_s - found[least].link_s
    if occupied < _TELLING * decision.problem.step_s:
        return 0.0
    longer = min(candidates[most].seconds[:ROUNDS]) - min(candidates[least].seconds[:ROUNDS])
    return max((longer - (found[most].cost - found[least].cost)) / occupied, 0.0)


def _is_faster(seconds: list[float], others: list[float]) -> bool:
    gains = [other - one for one, other in zip(seconds, others, strict=True)]
    spread = median(others) - min(others)
    return min(gains) > 0 and median(gains) > max(_MARGIN * median(others), spread)
