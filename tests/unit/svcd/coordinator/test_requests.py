from collections.abc import AsyncIterator
from email.utils import formatdate

import httpx
import pytest
import trio
from trio.testing import MockClock

from svcd.base.clock import Clock
from svcd.coordinator.requests import CoordinatorReply, Requests, Unanswered
from tests.fakes.streamed import StreamedTransport

pytestmark = pytest.mark.trio


class Server:
    """Answers each request with the next of what it was given; the last stays."""

    def __init__(self, *answers: httpx.Response | Exception | float) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, _: httpx.Request) -> httpx.Response:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await trio.sleep(answer)
            return httpx.Response(200, json={})
        return answer


def trouble(status: int, retryable: bool) -> httpx.Response:
    return httpx.Response(
        status,
        json={"error": {"code": None, "type": "busy"}},
        headers={"x-svc-retryable": "true" if retryable else "false"},
    )


async def ask(server: Server, **options: object) -> CoordinatorReply | Unanswered:
    async with httpx.AsyncClient(transport=StreamedTransport(server)) as http:
        return await Requests(http, "http://c").ask("POST", "/op", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "retryable", "asked"), [(503, True, 4), (503, False, 1), (429, True, 4), (500, False, 1)]
)
async def test_error_is_repeated_by_its_header_and_not_by_its_status(
    status: int, retryable: bool, asked: int, autojump_clock: MockClock
) -> None:
    server = Server(trouble(status, retryable))
    reply = await ask(server)
    assert isinstance(reply, CoordinatorReply)
    assert (reply.status, reply.code, server.asked) == (status, "busy", asked)


@pytest.mark.parametrize(("told", "waited"), [("7", 7), ("86400", 60), ("soon", 0.5), ("-5", 0.5)])
async def test_error_is_not_repeated_before_its_retry_after_is_over(
    told: str, waited: float, autojump_clock: MockClock
) -> None:
    busy = trouble(429, True)
    busy.headers["retry-after"] = told
    reply = await ask(Server(busy, httpx.Response(201, json={})))
    assert isinstance(reply, CoordinatorReply)
    assert reply.status == 201
    assert waited <= trio.current_time() <= waited + 0.25


async def test_request_with_a_deadline_is_repeated_before_it_whatever_retry_after_says(
    autojump_clock: MockClock,
) -> None:
    busy = trouble(503, True)
    busy.headers["retry-after"] = "30"
    reply = await ask(Server(busy, httpx.Response(201, json={})), give_up_at=trio.current_time() + 20)
    assert isinstance(reply, CoordinatorReply)
    assert reply.status == 201


async def test_request_without_an_answer_is_repeated_only_where_that_is_safe(autojump_clock: MockClock) -> None:
    careful, free = Server(httpx.ReadError("cut")), Server(httpx.ReadError("cut"), httpx.Response(200, json={}))
    assert isinstance(await ask(careful, resend=False), Unanswered)
    assert careful.asked == 1
    assert isinstance(await ask(free), CoordinatorReply)
    assert free.asked == 2


async def test_with_a_deadline_it_goes_on_until_then_and_not_longer(autojump_clock: MockClock) -> None:
    server = Server(trouble(503, True))
    reply = await ask(server, give_up_at=100.0)
    assert isinstance(reply, CoordinatorReply)
    assert server.asked > 8
    assert 85 < trio.current_time() < 100


async def test_answer_that_takes_too_long_is_none(autojump_clock: MockClock) -> None:
    assert isinstance(await ask(Server(1000.0), give_up_at=20.0), Unanswered)
    assert trio.current_time() == 20


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_answer_of_a_proxy_in_the_coordinators_place_is_none(status: int, autojump_clock: MockClock) -> None:
    restarting = httpx.Response(status, content=b"<html>Bad Gateway</html>")
    server = Server(restarting, restarting, httpx.Response(201, json={}))
    assert isinstance(await ask(server), CoordinatorReply)
    assert server.asked == 3
    assert isinstance(await ask(Server(restarting), resend=False), Unanswered)  # it may have come through all the same


async def test_answer_that_trickles_or_has_no_end_is_none(autojump_clock: MockClock) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(50)
            yield b" "

    async def flood() -> AsyncIterator[bytes]:
        while True:
            await trio.lowlevel.checkpoint()
            yield bytes(2**20)

    for endless in (trickle, flood):
        async with httpx.AsyncClient(
            transport=StreamedTransport(lambda _, endless=endless: httpx.Response(200, content=endless()))
        ) as http:
            assert isinstance(await Requests(http, "http://c").ask("GET", "/", attempts=1), Unanswered)
    assert trio.current_time() < 200


async def test_date_beyond_any_calendar_is_none(autojump_clock: MockClock) -> None:
    reply = await ask(Server(httpx.Response(200, headers={"date": f"Mon, 01 Jan {10**20} 00:00:00 GMT"})))
    assert isinstance(reply, CoordinatorReply)
    assert reply.date is None


async def test_answer_that_is_no_json_has_a_status_and_no_body(autojump_clock: MockClock) -> None:
    reply = await ask(Server(httpx.Response(500, content=b"<html>", headers={"date": "Thu, 01 Jan 1970 00:01:40 GMT"})))
    assert reply == CoordinatorReply(500, None, retryable=False, date=100.0)
    assert isinstance(reply, CoordinatorReply)
    assert (reply.code, reply.fields) == (None, {})


@pytest.mark.parametrize(("headers", "ahead"), [({}, 300), ({"age": "20"}, 0), ({"date": "soon"}, 0)])
async def test_clock_hears_the_date_of_answers_but_not_of_those_that_a_cache_kept(
    headers: dict[str, str], ahead: float
) -> None:
    clock = Clock(lambda: 1_800_000_300.5)
    server = Server(httpx.Response(200, json={}, headers={"date": formatdate(1_800_000_000, usegmt=True), **headers}))
    async with httpx.AsyncClient(transport=StreamedTransport(server)) as http:
        await Requests(http, "http://c", clock).ask("GET", "/")
    assert clock.ahead == ahead
