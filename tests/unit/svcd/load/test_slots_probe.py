from svcd.backends.load import open_load
from svcd.base import metrics
from tests.support.fakes.backend_settings import read_probe


async def test_without_a_probe_the_load_is_that_of_the_own_slots() -> None:
    async with open_load(read_probe({}), model="slotted", slots=4, in_flight=lambda: 3) as load:
        assert await load.read() == 0.75
    assert metrics.backend_load.labels("slotted")._value.get() == 0.75
    assert metrics.load_probe_failures.labels("slotted")._value.get() == 0
