import attrs
import pytest

from coordinatord.storage.database.fresh_value import MAX_AGE_S, FreshValue
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import Snapshot

pytestmark = pytest.mark.anyio

NO_LINE: PreparedConnection = None  # type: ignore[assignment] # handed through and never looked at
AT_5, AT_6 = Snapshot(5, b"a", 1), Snapshot(6, b"b", 2)


@attrs.define
class Index:
    stands: Snapshot = AT_5
    clock: float = 100.0
    asked: int = 0
    trouble: Exception | None = None

    async def read(self, _: PreparedConnection) -> Snapshot:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self.stands

    def position(self) -> FreshValue[Snapshot]:
        return FreshValue(NO_LINE, self.read, lambda: self.clock)


async def test_position_is_known_briefly_after_a_read() -> None:
    index = Index()
    position = index.position()
    assert position.recent_value() is None
    assert await position.get() == AT_5
    index.stands = AT_6
    index.clock += 0.4 * MAX_AGE_S
    assert position.recent_value() == AT_5
    index.clock += 0.7 * MAX_AGE_S
    assert position.recent_value() is None
    assert index.asked == 1


async def test_forgotten_position_is_read_again() -> None:
    index = Index()
    position = index.position()
    await position.get()
    position.invalidate()
    assert position.recent_value() is None
    index.clock += 0.1 * MAX_AGE_S
    assert await position.get_recent() == AT_5
    assert position.recent_value() == AT_5


async def test_tolerant_reader_queries_less_often() -> None:
    index = Index()
    position = index.position()
    assert await position.get_recent(5 * MAX_AGE_S) == AT_5
    index.stands = AT_6
    index.clock += 2 * MAX_AGE_S
    assert await position.get_recent(5 * MAX_AGE_S) == AT_5
    assert index.asked == 1
    assert await position.get_recent() == AT_6


async def test_position_from_another_read_needs_no_query() -> None:
    index = Index()
    position = index.position()
    learn = position.begin_read()
    index.clock += 0.4 * MAX_AGE_S
    learn(AT_5)
    assert position.recent_value() == AT_5
    index.clock += 0.7 * MAX_AGE_S  # the age counts from the start of the request
    assert position.recent_value() is None
    assert index.asked == 0


async def test_late_answer_of_an_earlier_request_is_ignored() -> None:
    index = Index()
    position = index.position()
    earlier = position.begin_read()
    index.clock += 0.1 * MAX_AGE_S
    later = position.begin_read()
    later(AT_6)
    earlier(AT_5)
    assert position.recent_value() == AT_6


async def test_position_requested_before_a_reset_is_not_recent() -> None:
    index = Index()
    position = index.position()
    learn = position.begin_read()
    index.clock += 0.1 * MAX_AGE_S
    position.invalidate()
    learn(AT_5)
    assert position.recent_value() is None
