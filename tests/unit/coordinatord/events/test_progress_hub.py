"""Progress hub: a slow database does not hold a stream back."""

from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from coordinatord.api.events import progress_hub
from coordinatord.api.events.progress_hub import MAX_READ_PAUSE_S, ProgressHub
from coordinatord.base.errors import Retryable

pytestmark = pytest.mark.anyio


async def test_slow_read_delays_the_stream_by_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = 100.0, []

    async def time_out(_source: Any, _job_ids: list[bytes]) -> dict[bytes, Any]:
        nonlocal now
        now += 30
        raise Retryable("not_ready", "the database did not answer")

    async def sleep_until(deadline: float) -> None:
        pauses.append(max(0.0, deadline - now))

    monkeypatch.setattr(progress_hub, "read_jobs_with_ops", time_out)
    monkeypatch.setattr(anyio, "current_time", lambda: now)
    monkeypatch.setattr(anyio, "sleep_until", sleep_until)
    with ProgressHub(Mock(), Mock()).follow(b"\1" * 32, Mock()) as read_if_changed:
        assert [await read_if_changed() for _ in range(2)] == [b"", b""]
    assert pauses == [0.0, MAX_READ_PAUSE_S]
