"""Objects on disk: those that are put at the same time, what is small and what is not, and what a restart finds."""

from pathlib import Path

import anyio
import pytest

from common.cid import cid_of
from devnet.pinstore.content import ContentIntake, Held, Received, digests_of
from devnet.pinstore.objects import Objects, Put, opened

pytestmark = pytest.mark.anyio

SMALL, LARGE = b"small", bytes(1 << 17)


def put_of(key: str, content: Held | Received) -> Put:
    return Put(key, content, content.digests.md5.hex(), "a/b", {"x-amz-meta-note": key})


def small(key: str, body: bytes = SMALL) -> Put:
    return put_of(key, Held(body, digests_of(body)))


def large(objects: Objects, key: str, body: bytes = LARGE) -> Put:
    intake = ContentIntake(objects.incoming())
    intake.write(body)
    return put_of(key, intake.finish())


def content(objects: Objects, key: str) -> bytes | None:
    found = objects.open(key)
    if found is None:
        return None
    with found[1] as file:
        return file.read()


def by_id(objects: Objects, body: bytes) -> bytes | None:
    file = objects.open_content(str(cid_of(body)))
    if file is None:
        return None
    with file:
        return file.read()


async def test_what_is_put_at_the_same_time_shares_a_write_and_is_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {str(number): b"body %d" % number for number in range(20)}
    writes: list[int] = []
    with opened(tmp_path) as objects:
        put = objects.put
        monkeypatch.setattr(objects, "put", lambda puts: [writes.append(len(puts)), put(puts)])
        async with anyio.create_task_group() as tasks:
            for key, body in bodies.items():
                tasks.start_soon(objects.share, small(key, body))
            tasks.start_soon(objects.share, large(objects, "large"))
    assert writes == [21]
    with opened(tmp_path) as objects:
        assert {key: content(objects, key) for key in bodies} == bodies
        assert content(objects, "large") == by_id(objects, LARGE) == LARGE


async def test_write_that_fails_fails_for_all_that_share_it_and_keeps_none(tmp_path: Path) -> None:
    with opened(tmp_path) as objects:
        await objects.share(small("before"))
        lost = large(objects, "lost")
        assert isinstance(lost.content, Received)
        lost.content.path.unlink()
        failures: list[str] = []

        async def attempt(put: Put) -> None:
            try:
                await objects.share(put)
            except OSError:
                failures.append(put.key)

        async with anyio.create_task_group() as tasks:
            for put in (small("beside", b"other"), lost):
                tasks.start_soon(attempt, put)
        assert sorted(failures) == ["beside", "lost"]
        assert content(objects, "before") == SMALL
        assert content(objects, "beside") is by_id(objects, b"other") is None
        await objects.share(small("beside", b"other"))
        assert content(objects, "beside") == b"other"


async def test_of_puts_of_one_key_in_one_write_the_last_stays_and_no_content_of_others(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as objects:
        objects.put([small("key", b"earlier"), large(objects, "key"), small("key", b"later")])
        assert content(objects, "key") == b"later"
        assert by_id(objects, b"earlier") is by_id(objects, LARGE) is None


async def test_content_goes_with_the_last_key_that_names_it(tmp_path: Path) -> None:
    with opened(tmp_path) as objects:
        objects.put([small("one"), small("other"), large(objects, "large")])
        for key in ("one", "large"):
            objects.delete(key)
        assert by_id(objects, SMALL) == SMALL
        assert by_id(objects, LARGE) is None
        objects.delete("other")
        assert by_id(objects, SMALL) is None
