"""A policy that goes by the classes of saved tensors, without a planner."""

from collections.abc import Callable, Sequence
from typing import Any

from tensorstash.engine.planned.meter import ENOUGH
from tensorstash.engine.planned.step import Seen, Step
from tensorstash.engine.planned.tracker import NewTracker, Tracker
from tensorstash.engine.state import SessionState
from tensorstash.engine.stats import Stats
from tensorstash.planner.model import SavedClass
from tensorstash.policies.plan import HookPolicy
from tensorstash.protocols import Selector
from tensorstash.sizes import format_bytes
from tensorstash.spec import TensorSpec


class ByClass:
    """Leaves everything to a policy that goes by the classes of tensors, such as a plan that was saved.

    Args:
        policy: what becomes of each saved tensor.
        selectors: of classes, that the policy has.
        say: tells the user what cannot be helped.
    """

    def __init__(self, policy: HookPolicy, selectors: Sequence[Selector], say: Callable[[str], None]) -> None:
        self._policy = policy
        self._selectors = selectors
        self._say = say
        self._is_sought = True
        """Whether no selector has selected anything so far, and the first step has not ended."""

    is_passing = False

    def limit(self, step: Step) -> int:
        """Return a limit that holds nothing back."""
        return ENOUGH

    def begin_step(self, first: Seen, spec: TensorSpec) -> None:
        """Take note of nothing."""

    def choose(self, tensor: Any, seen: Seen, spec: TensorSpec, step: Step, spare: int) -> None:
        """Choose the policy."""
        seen.policy, seen.is_named = self._policy, True
        if self._is_sought:
            named = seen.named(spec)
            self._is_sought = not any(selector.accepts(named) for selector in self._selectors)

    def next_bytes(self, step: Step) -> int:
        """Return nothing to wait for."""
        return 0

    def end_step(self, step: Step, peak: int) -> None:
        """Say so if a step has had nothing that the policy is about."""
        if self._is_sought and step.was_asked and step.seen:
            self._is_sought = False
            kinds = len({seen.key[:4] for seen in step.seen})
            nbytes = format_bytes(sum(seen.nbytes for seen in step.seen))
            self._say(
                f"plan: none of its {len(self._selectors)} classes is among the {kinds} kinds of tensors ({nbytes}) "
                f"that the step has saved, such as {_text(step.seen[0].key)}: it is the plan of another model, batch "
                f"size, dtype or version of the framework. Plan anew: run a few steps under a Budget, and save plan()"
            )

    def passing(self, state: SessionState) -> None:
        """Return that all are looked at."""

    def passes(self, nbytes: int, state: SessionState, *, is_first: bool) -> bool:
        """Return that it does not."""
        return False

    def plan(self) -> None:
        """Return that nothing was planned."""

    def count_passed(self) -> None:
        """Count nothing: all are looked at."""

    def described(self, stats: Stats, peak: int) -> Stats:
        """Return the statistics as they are."""
        return stats

    def explain(self) -> str:
        """Return that there is nothing to say."""
        return ""


def _text(key: SavedClass) -> str:
    place = f" in {key.module}" if key.module else ""
    return f"{key.producer or 'an input'} {key.dtype}{list(key.shape)}{place}"


def by_class(policy: HookPolicy, selectors: Sequence[Selector]) -> NewTracker:
    """Return what makes a tracker that leaves everything to a policy with selectors of classes."""

    return lambda parts: Tracker(ByClass(policy, selectors, parts.adviser.say), parts)
