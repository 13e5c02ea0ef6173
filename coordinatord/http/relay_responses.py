"""Statuses and bodies for relay outcomes that all routes share."""

from typing import assert_never

from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NotSigned, WouldRefuse
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy
from coordinatord.http.responses import Response, error, retry_later


def busy() -> Response:
    return retry_later(Retryable("busy", "too many requests are queued on this subject", retry_after=2))


def receipt_timeout(tx_hash: bytes, poll: str) -> Response:
    message = f"no receipt within 60 seconds; the transaction may still be mined: poll {poll} instead of resending"
    return error(504, "receipt_timeout", message, code=hex_of(tx_hash))


def refused_by_chain(outcome: RefusedByChain) -> Response:
    if outcome.name is None:
        return error(409, "invalid_request_error", f"the chain refuses: {hex_of(outcome.raw)}")
    return error(409, "invalid_request_error", f"the chain refuses: {outcome.name}", code=outcome.name)


def would_refuse(outcome: WouldRefuse) -> Response:
    return error(409, "invalid_request_error", outcome.message, code=outcome.name)


def relayed(outcome: RefusedByChain | RelayBusy | NoReceipt | WouldRefuse, poll: str) -> Response:
    match outcome:
        case RefusedByChain():
            return refused_by_chain(outcome)
        case WouldRefuse():
            return would_refuse(outcome)
        case RelayBusy():
            return busy()
        case NoReceipt():
            return receipt_timeout(outcome.tx_hash, poll)
        case _:
            assert_never(outcome)


def not_signed(outcome: NotSigned, *, status: int = 403) -> Response:
    return error(status, outcome.kind, outcome.message, param=None, code=outcome.code)
