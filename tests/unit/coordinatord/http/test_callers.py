import json

import anyio
import pytest

from common.daemon.asgi import Receive, Scope, Send
from coordinatord.http.caller_limits import CallerLimits, TokenBuckets, caller_of
from coordinatord.http.responses import Response, send_response
from tests.unit.coordinatord.http.asgi import ask, scope

pytestmark = pytest.mark.anyio
PROXY = frozenset({"10.0.0.1", "10.0.0.2"})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_gives_its_burst_and_then_its_rate() -> None:
    clock = Clock()
    buckets = TokenBuckets(per_second=2, burst=3, clock=clock)
    assert [buckets.take_or_get_wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take_or_get_wait_s("a") == 0.5
    clock.now += 0.5
    assert buckets.take_or_get_wait_s("a") == 0.0
    clock.now += 1000
    assert [buckets.take_or_get_wait_s("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_one_callers_requests_take_nothing_from_another() -> None:
    buckets = TokenBuckets(per_second=1, burst=1, clock=Clock())
    assert buckets.take_or_get_wait_s("a") == 0.0
    assert buckets.take_or_get_wait_s("a") > 0
    assert buckets.take_or_get_wait_s("b") == 0.0


@pytest.mark.parametrize(
    ("client", "forwarded", "caller"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),  # not a trusted proxy, so its header is ignored
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        # entries to the left come from the caller and are ignored
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("10.0.0.1", "2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("10.0.0.1", "[2001:DB8:1:2::7]:4711", "2001:db8:1:2::/64"),
        ("10.0.0.1", "2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("10.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
    ],
)
def test_caller_is_the_nearest_untrusted_address(client: str, forwarded: str | None, caller: str) -> None:
    headers = {"x_forwarded_for": forwarded} if forwarded is not None else {}
    assert caller_of(scope(client=client, **headers), PROXY) == caller


async def test_caller_over_its_rate_is_answered_429_with_a_time() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send_response(send, Response(200, b"{}"))

    limited = CallerLimits(app, TokenBuckets(per_second=0.1, burst=1, clock=Clock()), frozenset())
    assert (await ask(limited, scope())).status == 200
    second = await ask(limited, scope())
    assert (second.status, second.headers["retry-after"], second.headers["x-svc-retryable"]) == (429, "10", "true")
    assert json.loads(second.body)["error"]["type"] == "busy"
    assert (await ask(limited, scope(client="192.0.2.2"))).status == 200


async def test_caller_waits_for_a_token() -> None:
    buckets = TokenBuckets(per_second=20, burst=2)
    await buckets.wait_and_take("a", 2)
    assert buckets.take_or_get_wait_s("a") > 0
    with anyio.fail_after(5):
        await buckets.wait_and_take("a", 4)  # the maximum
    assert buckets.take_or_get_wait_s("a") > 0, "they were taken"
