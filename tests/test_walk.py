"""The way of one saved tensor through the engine is as long as the architecture says."""

from tests import test_house as house
from tests.engine.labs import lab_of
from tests.walk import walks


def test_a_tensor_enters_as_many_rooms_as_the_architecture_says() -> None:
    rooms = {
        trip: {callee for _, callee, _ in steps if house.folder(callee) == "engine"}
        for trip, steps in walks(lab_of("reference"), "zstd").items()
    }
    assert 0 < len(rooms["pack to slot"]) <= 11
    assert 0 < len(rooms["back"]) <= 8
