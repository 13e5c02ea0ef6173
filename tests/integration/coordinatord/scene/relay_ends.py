"""Relay outcomes that are hard to produce on a real chain, returned by fakes of `submit` and `wait`.

The relayer's tests show how each outcome arises. These tests show how callers learn about the outcome.
"""

from collections.abc import Callable

import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.outbox_sql import NewRelay, QueuedRelay
from coordinatord.chain.relayer.relaying import NoReceipt, Outcome, RefusedByChain, RelayBusy, Relaying

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


def refused(name: str) -> Callable[[], Outcome]:
    return lambda: RefusedByChain(name, b"")


def busy() -> Outcome:
    return RelayBusy()


def no_receipt() -> Outcome:
    return NoReceipt(TX_HASH)
