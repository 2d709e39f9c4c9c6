"""One plan for all processes of a training, since those that differ wait for one another.

Nobody waits for it. Each process tells what it has measured when a step of that kind begins, and looks at what there is
when another one begins. The first process decides as soon as all have told; if some have not, because they save
something else or have no budget, it decides without them, and if it saves something else itself, another one does.
A decision holds from the step after the one in which it was made: processes that keep step with each other all know it
by then. Those that do not keep step have it a step or more later.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tensorstash.abilities import Ranks
from tensorstash.planner.decision import Decision, Measured, decide
from tensorstash.planner.model import Option, Problem

_MISSED = 2
"""Steps after which the first process decides without those that have told nothing; others leave it one more."""

_TOPICS = 16
"""Kinds of steps that are remembered."""


class _Topic:
    """What is agreed on: one kind of step.

    Args:
        prefix: of all keys.
        measured: the step, by this process.
        since: number of the step that began when this process told of it.
    """

    def __init__(self, prefix: str, measured: Measured, since: int) -> None:
        self.prefix = prefix
        self.measured = measured
        self.since = since
        self.decided = 0
        """Decisions that this process has followed."""


class Agreement:
    """Decides with other processes what becomes of the steps of one session. For the thread that runs them.

    Args:
        ranks: the processes.
        say: tells the user what cannot be helped.
    """

    def __init__(self, ranks: Ranks, say: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._say = say
        self._topics: OrderedDict[Hashable, _Topic] = OrderedDict()
        self._session = 0
        self.is_lost = False
        """Whether the processes do not reach each other any more."""

    def tell(self, signature: Hashable, measured: Measured, step: int) -> None:
        """Tell the others of a step that was measured.

        Args:
            signature: of the step.
            measured: the step.
            step: number of the step that begins now.
        """
        with self._unless_lost():
            # Sessions of one program are equal on all ranks, and take turns in the same order.
            if not self._session:
                self._session = self._ranks.shared.add(f"tensorstash/sessions of {self._ranks.rank}", 1)
            prefix = f"tensorstash/{self._session}/{measured.structure}"
            topic = self._topics[signature] = _Topic(prefix, measured, step)
            self._topics.move_to_end(signature)
            while len(self._topics) > _TOPICS:
                self._topics.popitem(last=False)
            if self._put(f"{topic.prefix}/of {self._ranks.rank}", json.dumps(_summary(measured.problem))):
                self._ranks.shared.add(f"{topic.prefix}/told", 1)

    def knows(self, signature: Hashable) -> bool:
        """Whether the steps of a signature are decided together."""
        return not self.is_lost and signature in self._topics

    def drop(self, signature: Hashable) -> None:
        """Forget the steps of a signature, so that they may be told of anew."""
        self._topics.pop(signature, None)

    def look(self, signature: Hashable, step: int) -> tuple[Measured, Decision] | None:
        """Return what holds from now on, if that has changed; never waits.

        Args:
            signature: of the step that begins.
            step: its number.
        """
        topic = self._topics.get(signature)
        if topic is None or self.is_lost:
            return None
        found = None
        with self._unless_lost():
            while (text := self._get(f"{topic.prefix}/decision {topic.decided}")) is not None:
                made_at, _, rest = text.partition(b" ")
                if int(made_at) == step:  # others may not know it yet
                    break
                topic.decided += 1
                found = rest
            if topic.decided == 0 and text is None and self._is_due(topic, step):
                self._decide(topic, step)
        return None if found is None else (topic.measured, Decision.from_text(found))

    def propose(self, signature: Hashable, decision: Decision, step: int) -> None:
        """Decide anew, unless another process has just done so.

        Args:
            signature: of the steps.
            decision: that is to hold.
            step: number of the step that begins now.
        """
        topic = self._topics[signature]
        with self._unless_lost():
            self._put(f"{topic.prefix}/decision {topic.decided}", f"{step} {decision.to_text()}")

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """Agree on nothing any more, and say so, where the processes do not reach each other."""
        try:
            yield
        except (RuntimeError, OSError, ValueError) as error:
            self.is_lost = True
            first = next(iter(str(error).splitlines()), "")
            self._say(
                f"budget: the processes of this training do not reach each other any more ({type(error).__name__}: "
                f"{first}); from now on this one changes its plan for itself"
            )

    def _is_due(self, topic: _Topic, step: int) -> bool:
        waited = step - topic.since
        if self._ranks.rank or not waited:
            return waited > _MISSED
        return waited >= _MISSED or self._number(f"{topic.prefix}/told") >= self._ranks.count

    def _decide(self, topic: _Topic, step: int) -> None:
        told = {rank: self._get(f"{topic.prefix}/of {rank}") for rank in range(self._ranks.count)}
        summaries = {rank: json.loads(text) for rank, text in told.items() if text is not None}
        problem = _slowest(topic.measured.problem, list(summaries.values()))
        decision = decide(replace(topic.measured, problem=problem), sorted(summaries))
        self._put(f"{topic.prefix}/decision 0", f"{step} {decision.to_text()}")

    # Keys that are looked at without waiting: a number says whether there is a text.

    def _number(self, key: str) -> int:
        return self._ranks.shared.add(key, 0)

    def _put(self, key: str, text: str) -> bool:
        """Set a text, unless there is one; return whether it was set."""
        shared = self._ranks.shared
        if shared.add(f"{key}/claimed", 1) > 1:
            return False
        shared.set(key, text)
        shared.add(f"{key}/set", 1)
        return True

    def _get(self, key: str) -> bytes | None:
        return self._ranks.shared.get(key) if self._number(f"{key}/set") else None


def _summary(problem: Problem) -> dict[str, Any]:
    """Return the room of a process, and what each tier takes there in all."""
    took: dict[str, list[float]] = {}
    for record in problem.records:
        for option in record.options:
            sums = took.setdefault(option.tier, [0.0, 0.0, 0.0])
            for place, seconds in enumerate((option.seconds, option.out_s, option.back_s)):
                sums[place] += seconds
    return {"budget": problem.budget, "background": problem.background, "took": took}


def _slowest(problem: Problem, summaries: list[dict[str, Any]]) -> Problem:
    """Return a step as if all went as it does where it is slowest, in the least room."""
    own = _summary(problem)["took"]

    def times(tier: str, place: int) -> float:
        mine = own[tier][place]
        others = (summary["took"].get(tier, (0.0, 0.0, 0.0))[place] for summary in summaries)
        return max([mine, *others]) / mine if mine else 1.0

    factors = {tier: [times(tier, place) for place in range(3)] for tier in own}

    def slowed(option: Option) -> Option:
        now, out, back = factors[option.tier]
        return replace(option, seconds=option.seconds * now, out_s=option.out_s * out, back_s=option.back_s * back)

    return replace(
        problem,
        records=tuple(replace(record, options=tuple(map(slowed, record.options))) for record in problem.records),
        budget=min(summary["budget"] for summary in summaries),
        background=max(summary["background"] for summary in summaries),
    )
