"""Relay outcomes that are hard to produce on a real chain, returned by fakes of `submit` and `wait`.

The relayer's tests show how each outcome arises. These tests show how callers learn about the outcome.
"""

from collections.abc import Awaitable, Callable

import httpx
import pytest

from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.outbox_sql import NewRelay, QueuedRelay
from coordinatord.chain.relayer.relaying import NoReceipt, Outcome, RelayBusy, Relaying

CODES = (
    "relayer_funds",
    "nonce_conflict",
    "rpc_internal",
    "rate_limited",
    "endpoint_refused",
    "relay_queue_full",
    "relay_queue_timeout",
)
TX_HASH = b"\xab" * 32


def ending(monkeypatch: pytest.MonkeyPatch, end: Callable[[], Outcome]) -> None:
    """Make every later relay end like this."""

    async def submit(_: Relaying, new: NewRelay) -> QueuedRelay:
        return QueuedRelay(0, new, is_duplicate=False)

    async def wait(_: Relaying, __: QueuedRelay) -> Outcome:
        return end()

    monkeypatch.setattr(Relaying, "submit", submit)
    monkeypatch.setattr(Relaying, "wait", wait)


def dropped(code: str) -> Callable[[], Outcome]:
    def end() -> Outcome:
        raise Retryable("relay_unavailable", "the relay was dropped", code)

    return end


def busy() -> Outcome:
    return RelayBusy()


def no_receipt() -> Outcome:
    return NoReceipt(TX_HASH)


async def check_each_end(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Awaitable[httpx.Response]]) -> str:
    """Check the responses to relays that end in each of these ways. Return the message about the missing receipt."""
    for code in CODES:
        ending(monkeypatch, dropped(code))
        answer = await ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["x-svc-retryable"] == "true"
    ending(monkeypatch, busy)
    answer = await ask()
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "busy")
    assert (int(answer.headers["retry-after"]) > 0, answer.headers["x-svc-retryable"]) == (True, "true")
    ending(monkeypatch, no_receipt)
    answer = await ask()
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (504, "receipt_timeout", hex_of(TX_HASH))
    return str(error["message"])
