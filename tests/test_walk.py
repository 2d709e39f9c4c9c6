"""The way of one saved tensor through the engine is as long as the architecture says."""

from collections import Counter

import pytest

from tensorstash.testing.labs import BACKENDS, lab_of
from tests import test_house as house
from tests.walk import Step, climbs, walks


def engine(steps: list[Step]) -> list[Step]:
    return [step for step in steps if house.folder(step[1]) == "engine"]


@pytest.mark.parametrize("framework", BACKENDS)
def test_a_tensor_enters_as_many_rooms_as_the_architecture_says(framework: str) -> None:
    found = {trip: engine(steps) for trip, steps in walks(lab_of(framework), "zstd").items()}
    entries = {trip: Counter(callee for _, callee, _ in steps) for trip, steps in found.items()}
    assert {trip: len(rooms) for trip, rooms in entries.items()} == {"pack to slot": 8, "back": 5}, entries
    assert {trip: len(climbs(steps)) for trip, steps in found.items()} == {"pack to slot": 1, "back": 0}
    assert max(max(rooms.values()) for rooms in entries.values()) <= 3, entries
