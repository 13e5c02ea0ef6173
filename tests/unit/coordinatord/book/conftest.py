"""Fixtures for polls in memory."""

import anyio
import pytest

from coordinatord.api.book import leases_sql, outlooks_sql
from tests.unit.coordinatord.book.polling import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(outlooks_sql, "read_outlooks", one.read_outlooks)
    monkeypatch.setattr(leases_sql, "lease_jobs", one.lease)
    monkeypatch.setattr(leases_sql, "hold_back_jobs", one.hold_back)
    monkeypatch.setattr(leases_sql, "hold_back_unaffordable_jobs", one.hold_back_unaffordable_jobs)
    monkeypatch.setattr(anyio, "current_time", lambda: one.now)
    return one
