"""What polls stand on, on paper."""

import anyio
import pytest

from coordinatord.api.book import leases_sql, polls
from tests.unit.coordinatord.book.polling import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(leases_sql, "poll", one.lease)
    monkeypatch.setattr(leases_sql, "hold_back", one.hold_back)
    monkeypatch.setattr(leases_sql, "hold_back_beyond", one.hold_back_beyond)
    monkeypatch.setattr(polls, "PollHints", one.hints)
    monkeypatch.setattr(anyio, "current_time", lambda: one.now)
    return one
