import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.bench.shared import Shared

Kept = Shared[list[str]]


def noted(said: list[str]) -> Kept:
    """A resource that records when it is opened and closed."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[list[str]]:
        said.append("opened")
        yield said
        said.append("closed")

    return Shared(opened)


async def work(said: list[str]) -> int:
    said.append("work")
    return threading.get_ident()


def test_shared_resource_opens_once_and_closes_at_the_end() -> None:
    said: list[str] = []
    shared = noted(said)
    with shared.kept():
        assert said == []
        threads = {shared.run(work), shared.run(work)}
        assert said == ["opened", "work", "work"]
    assert said == ["opened", "work", "work", "closed"]
    assert len(threads) == 1


def test_single_user_gets_a_private_resource() -> None:
    said: list[str] = []
    shared = noted(said)
    shared.run(work)
    shared.run(work)
    assert said == ["opened", "work", "closed"] * 2


def test_resource_is_closed_after_a_failure() -> None:
    said: list[str] = []
    shared = noted(said)

    async def fail(_: list[str]) -> None:
        raise ValueError("no result")

    with pytest.raises(ValueError, match="no result"), shared.kept():
        shared.run(fail)
    assert said == ["opened", "closed"]
    shared.run(work)
    assert said == ["opened", "closed", "opened", "work", "closed"]


def test_unused_resource_is_not_opened() -> None:
    said: list[str] = []
    with noted(said).kept():
        pass
    assert said == []
