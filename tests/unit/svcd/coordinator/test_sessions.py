import httpx
import pytest
import trio

from svc.wire.sessions import Sessions
from svcd.base.clock import Clock
from svcd.coordinator.client import open_transport
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.sessions import ProviderSession, SignInRefused, provider_sessions, sign_in
from tests.support.fakes.market import URL, Market
from tests.support.fakes.market_answers import Script, answer, error, instead, lost, unreached

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
