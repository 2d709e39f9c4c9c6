"""A device that works in an order of chance."""

import random
from collections.abc import Sequence

from tensorstash.reference.storage.streams import Stream


class Shuffled:
    """Any order of events, by chance: ``eagerness`` is the probability of one more step that nobody waits for."""

    def __init__(self, seed: int, eagerness: float = 0.5) -> None:
        self._random = random.Random(seed)
        self._eagerness = eagerness

    def pauses(self) -> bool:
        return self._random.random() >= self._eagerness

    def pick(self, streams: Sequence[Stream]) -> Stream:
        return self._random.choice(streams)
