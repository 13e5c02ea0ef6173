import json

import anyio
import pytest

from common.daemon.asgi import Message
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import BodyBudget, BodyReader, ClientDisconnected, UnacceptableBody, parse_body
from tests.unit.coordinatord.http.asgi import receiving

pytestmark = pytest.mark.anyio
READER = BodyReader(timeout_s=60, min_bytes_per_s=1000)


async def read(
    pieces: list[bytes | None], budget: BodyBudget, limit: int = 100, caller: str = "", **headers: str
) -> bytes:
    async with budget.open_share(caller) as share:
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return await READER.read(receiving(pieces), sent, limit, share)


async def test_body_up_to_the_limit_is_read_whole() -> None:
    assert await read([b"a" * 60, b"b" * 40], BodyBudget(1000)) == b"a" * 60 + b"b" * 40


@pytest.mark.parametrize("declared", ["101", "99999999999999999999", None])
async def test_body_over_the_limit_is_413_whether_declared_or_not(declared: str | None) -> None:
    headers = {"content_length": declared} if declared else {}
    with pytest.raises(UnacceptableBody) as refused:
        await read([b"a" * 60, b"b" * 41], BodyBudget(1000), **headers)
    assert refused.value.response.status == 413


async def test_bodies_beyond_the_budget_are_busy() -> None:
    budget = BodyBudget(100)
    async with budget.open_share("") as first:
        await READER.read(receiving([b"a" * 60]), [], 100, first)
        with pytest.raises(Retryable) as busy:
            await read([b"b" * 41], budget)
        assert busy.value.kind == "busy"
    assert await read([b"b" * 100], budget) == b"b" * 100


async def test_bodies_of_one_caller_leave_room_for_anothers() -> None:
    budget = BodyBudget(100, max_caller_bytes=50)
    async with budget.open_share("stranger") as held:
        held.reserve_bytes(50)
        with pytest.raises(Retryable) as busy:
            await read([b"a"], budget, caller="stranger")
        assert busy.value.kind == "busy"
        assert await read([b"b" * 50], budget, caller="honest") == b"b" * 50
    assert await read([b"a" * 50], budget, caller="stranger") == b"a" * 50


async def test_encoded_body_is_refused_unread() -> None:
    with pytest.raises(Refused):
        await read([], BodyBudget(100), content_encoding="gzip")


@pytest.mark.parametrize("part", [b"{}", b"1", b"[[]]", b'""'])
async def test_body_with_too_many_parts_is_refused(part: bytes) -> None:
    with pytest.raises(Refused, match="at most 16384 JSON values"):
        await parse_body(b'{"a":[' + b",".join([part] * 20_000) + b"]}")


async def test_body_whose_texts_are_long_is_read() -> None:
    pairs = {f"key {n}": "a,b" * 170 for n in range(16)}
    assert await parse_body(json.dumps({"metadata": pairs, "container": "A" * 100_000}).encode())


async def test_caller_who_goes_away_midway_is_noticed() -> None:
    with pytest.raises(ClientDisconnected):
        await read([b"a", None], BodyBudget(100))


async def test_endless_body_is_given_up_at_the_deadline() -> None:
    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async with BodyBudget(100).open_share("") as share:
        with pytest.raises(UnacceptableBody) as slow:
            await BodyReader(timeout_s=0.01, min_bytes_per_s=1).read(never, [], 100, share)
    assert slow.value.response.status == 408


async def test_stalled_body_is_given_up_early() -> None:
    pieces = iter([{"type": "http.request", "body": b"a" * 50_000, "more_body": True}])

    async def receive() -> Message:
        for piece in pieces:
            return piece
        await anyio.sleep_forever()
        raise AssertionError

    async with BodyBudget(1 << 20).open_share("") as share:
        with anyio.fail_after(60), pytest.raises(UnacceptableBody) as slow:
            await BodyReader(timeout_s=60, min_bytes_per_s=1, stall_timeout_s=0.01).read(receive, [], 1 << 20, share)
    assert slow.value.response.status == 408


@pytest.mark.parametrize(
    ("second_piece_at", "is_slow"),
    [(4.9, False), (5.1, True), (5.0 + 0.01, False)],
    ids=["within the grace", "behind the rate", "at the rate"],
)
async def test_body_slower_than_the_least_rate_after_the_grace_is_408(second_piece_at: float, is_slow: bool) -> None:
    times = iter([0.0, 0.0, second_piece_at])  # once at the start and after each piece but the last
    reader = BodyReader(timeout_s=60, min_bytes_per_s=1000, clock=lambda: next(times))
    pieces = receiving([b"a" * 10, b"b" * 10, b"c"])
    async with BodyBudget(100).open_share("") as share:
        if is_slow:
            with pytest.raises(UnacceptableBody) as slow:
                await reader.read(pieces, [], 100, share)
            assert slow.value.response.status == 408
        else:
            assert len(await reader.read(pieces, [], 100, share)) == 21
