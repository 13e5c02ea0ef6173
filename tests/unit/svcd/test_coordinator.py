import io
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from common.api import limits
from svc.wire.sessions import Sessions
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator, MarketReader, open_transport
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpMined, OpOutcome, OpPending, Unanswered
from svcd.coordinator.sessions import ProviderSession, SignInRefused, provider_sessions, sign_in
from tests.support.fakes.market import START, URL, Market
from tests.support.fakes.market_answers import Script, answer, error, instead, lost, unreached
from tests.support.fakes.streamed import StreamedTransport

OP = {"op": "settle"}


class Server:
    """A server that answers ops with scripted answers in turn. The last answer repeats."""

    def __init__(self, *answers: httpx.Response | Exception | float) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.market = Market(lambda: START + trio.current_time())

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/evm/ops":
            return await self.market.handle(request)
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


async def run(server: Server, deadline: float, *, resend: bool = True) -> OpOutcome:
    async with httpx.AsyncClient(transport=StreamedTransport(server), base_url=URL) as http:
        transport = open_transport(http)
        sessions = provider_sessions(transport, OpSigner(server.market.provider, server.market.domains))
        return await Coordinator(transport, sessions).send_op(OP, deadline, resend=resend)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (httpx.Response(201, json={"tx_hash": "0x1", "status": "success"}), OpMined("0x1", True)),
        (httpx.Response(201, json={"tx_hash": "0x1", "status": "reverted"}), OpMined("0x1", False)),
        (httpx.Response(409, json={"ok": False, "reason": "NotOpen"}), ChainRefused("NotOpen")),
        (trouble(409, False), CoordinatorRefusal(409, "busy")),
        (trouble(503, False), CoordinatorRefusal(503, "busy")),
        (httpx.Response(202, json={}), CoordinatorRefusal(202, None)),
        (httpx.Response(500, content=b"<html>"), CoordinatorRefusal(500, "internal_error")),
        (
            httpx.Response(
                504, json={"error": {"type": "receipt_timeout", "code": "0x2"}}, headers={"x-svc-retryable": "false"}
            ),
            OpPending("0x2"),
        ),
    ],
)
async def test_each_answer_to_an_op_is_its_outcome(answer: httpx.Response, outcome: OpOutcome) -> None:
    server = Server(answer)
    assert await run(server, 20.0) == outcome
    assert server.asked == 1


async def test_error_that_may_pass_is_repeated_until_the_deadline() -> None:
    server = Server(trouble(503, True))
    assert await run(server, 100.0) == CoordinatorRefusal(503, "busy")
    assert server.asked > 8
    assert 85 < trio.current_time() < 100


async def test_op_with_a_deadline_is_retried_before_it() -> None:
    busy = trouble(503, True)
    busy.headers["retry-after"] = "30"
    server = Server(busy, httpx.Response(201, json={"status": "success"}))
    assert isinstance(await run(server, 20.0), OpMined)


async def test_unanswered_op_is_retried_only_where_safe() -> None:
    mined = httpx.Response(201, json={"status": "success"})
    careful, free = Server(httpx.ReadError("cut")), Server(httpx.ReadError("cut"), mined)
    assert isinstance(await run(careful, 20.0, resend=False), Unanswered)
    assert careful.asked == 1
    assert isinstance(await run(free, 20.0), OpMined)
    assert free.asked == 2


async def test_late_answer_counts_as_none() -> None:
    assert isinstance(await run(Server(1000.0), 20.0), Unanswered)
    assert trio.current_time() == 20


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_answer_of_a_proxy_counts_as_none(status: int) -> None:
    restarting = httpx.Response(status, content=b"<html>Bad Gateway</html>")
    server = Server(restarting, restarting, httpx.Response(201, json={"status": "success"}))
    assert isinstance(await run(server, 20.0), OpMined)
    assert server.asked == 3
    # The op may have succeeded in spite of the error.
    assert isinstance(await run(Server(restarting), 20.0, resend=False), Unanswered)


async def test_unreadable_success_leaves_the_outcome_unknown() -> None:
    encoded = httpx.Response(201, stream=httpx.ByteStream(b"zip"), headers={"content-encoding": "gzip"})
    assert isinstance(await run(Server(encoded), 20.0), Unanswered)


async def test_trickling_or_endless_answer_counts_as_none() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(50)
            yield b" "

    async def flood() -> AsyncIterator[bytes]:
        while True:
            await trio.lowlevel.checkpoint()
            yield bytes(2**20)

    for endless in (trickle, flood):
        transport = StreamedTransport(lambda _, endless=endless: httpx.Response(200, content=endless()))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
            before = trio.current_time()
            with pytest.raises(Unavailable):
                await MarketReader(open_transport(http)).read_provider(7)
            assert trio.current_time() - before < 4 * 185  # four attempts of at most 181 s, and the pauses between them


async def test_upload_sends_its_file_again_from_the_start() -> None:
    bodies: list[bytes] = []
    market = Market(lambda: START + trio.current_time())

    async def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/files":
            return await market.handle(request)
        bodies.append(await request.aread())
        return trouble(503, True) if len(bodies) == 1 else httpx.Response(200, json={})

    async with httpx.AsyncClient(transport=StreamedTransport(reply), base_url=URL) as http:
        transport = open_transport(http)
        coordinator = Coordinator(transport, provider_sessions(transport, OpSigner(market.provider, market.domains)))
        await coordinator.upload_result(io.BytesIO(b"sealed"), 20.0)
    assert [b"sealed" in body for body in bodies] == [True, True]


async def test_endless_pages_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OFFSET_ROWS", 1_000)
    model = {"id": "m", "owned_by": "us", "svc": {"model_id": "1", "enabled": True}}
    cut = {"x-svc-page-truncated": "true"}
    same = StreamedTransport(lambda _: httpx.Response(200, json={"data": [model] * 100}, headers=cut))
    async with httpx.AsyncClient(transport=same, base_url=URL) as http:
        with pytest.raises(Unavailable, match="list is too long"):
            await MarketReader(open_transport(http)).read_model_ids()


NONCE_GONE = error(400, None, param="nonce")


@pytest.fixture
def sessions(market: Market) -> Sessions:
    http = httpx.AsyncClient(transport=market.transport, base_url=URL)
    return provider_sessions(open_transport(http, Clock(market.now)), OpSigner(market.provider, market.domains))


async def test_callers_share_one_session_until_a_minute_before_its_end(market: Market, sessions: Sessions) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(sessions.current)
    assert len(market.sessions) == 1
    await trio.sleep(86_400 - 61)
    await sessions.current()
    assert len(market.sessions) == 1
    await trio.sleep(1)
    await sessions.current()
    assert len(market.sessions) == 2


async def test_disowned_session_is_replaced_once(market: Market, sessions: Sessions) -> None:
    first = await sessions.current()
    sessions.forget(first)
    second = await sessions.current()
    sessions.forget(first)  # a slower caller reports the first session
    assert await sessions.current() is second
    assert len(market.sessions) == 2


@pytest.mark.parametrize(
    ("scripts", "status_and_final"),
    [
        ({"session": instead(error(403, "not_registered"))}, (403, True)),
        ({"session": instead(answer(200, {"token": "t"}))}, (200, False)),  # no session
        ({"session": lost()}, (None, False)),
        ({"session": instead(NONCE_GONE)}, (None, False)),
        ({"nonce": unreached()}, (None, False)),
        ({"nonce": instead(error(503, None, "relay_unavailable", retryable=True))}, (503, False)),
        ({"nonce": instead(error(429, "rate_limited", "busy", retryable=True))}, (429, False)),
    ],
)
async def test_failed_sign_in_reports_the_cause(
    scripts: dict[str, Script], status_and_final: tuple[int | None, bool], market: Market, sessions: Sessions
) -> None:
    market.always = scripts
    refused = await sign_in(sessions)
    assert isinstance(refused, SignInRefused)
    assert (refused.status, refused.is_permanent) == status_and_final
    market.always = {}
    assert isinstance(await sign_in(sessions), ProviderSession)


async def test_wasted_nonce_is_replaced(market: Market, sessions: Sessions) -> None:
    """The database fails during the commit, so a retry finds the nonce used."""
    market.scripts["session"] = [instead(error(503, None, "not_ready", retryable=True)), instead(NONCE_GONE)]
    assert isinstance(await sign_in(sessions), ProviderSession)


async def test_caller_does_not_wait_beyond_its_own_deadline(market: Market, sessions: Sessions) -> None:
    market.always["nonce"] = unreached()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.current, 10_000.0)
        await trio.sleep(1)
        assert isinstance(await sign_in(sessions, 20.0), SignInRefused)
        assert trio.current_time() == 20
        nursery.cancel_scope.cancel()
