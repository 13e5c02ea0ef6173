from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

T = TypeVar("T")


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work inline, because the virtual clock would jump forward while a thread works."""

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        return act(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
