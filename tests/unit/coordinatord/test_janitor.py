"""The janitor deletes several objects at a time. One failure does not delay the others."""

from functools import partial

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.run import janitor

pytestmark = pytest.mark.anyio


async def test_content_is_removed_several_at_a_time_and_no_more() -> None:
    under_way, most, full = 0, 0, anyio.Event()

    async def remove() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == janitor._MAX_CONCURRENT_REMOVALS:
            full.set()
        await full.wait()
        await anyio.lowlevel.checkpoint()
        under_way -= 1

    with anyio.fail_after(60):
        await janitor._remove_all({str(n): remove for n in range(4 * janitor._MAX_CONCURRENT_REMOVALS)})
    assert most == janitor._MAX_CONCURRENT_REMOVALS > 1


async def test_janitor_skips_content_that_cannot_be_removed() -> None:
    removed: list[int] = []

    async def remove(number: int) -> None:
        if number == 1:
            raise Retryable("store_unavailable", "the object store did not answer")
        removed.append(number)

    await janitor._remove_all({str(n): partial(remove, n) for n in range(6)})
    assert sorted(removed) == [0, 2, 3, 4, 5]
