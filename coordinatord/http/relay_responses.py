"""Responses for the outcomes of a relay, shared by all routes."""

from typing import assert_never

from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal, Unauthorised
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy
from coordinatord.http.responses import Response, error, retry_later


def relay_busy_response() -> Response:
    return retry_later(
        Retryable(
            "busy", "too many requests for this job or from this signer are queued; try again later", retry_after=2
        )
    )


def receipt_timeout_response(tx_hash: bytes, poll_route: str) -> Response:
    message = (
        f"no receipt within 60 seconds; the transaction may still be mined: poll {poll_route} instead of resending"
    )
    return error(504, "receipt_timeout", message, code=hex_of(tx_hash))


def chain_refusal_response(outcome: RefusedByChain) -> Response:
    if outcome.name is None:
        return error(
            409, "invalid_request_error", f"the chain refuses the call with an unknown error: {hex_of(outcome.raw)}"
        )
    return error(409, "invalid_request_error", f"the chain refuses the call with {outcome.name}", code=outcome.name)


def predicted_refusal_response(outcome: PredictedRefusal) -> Response:
    return error(409, "invalid_request_error", outcome.message, code=outcome.name)


def relay_failure_response(
    outcome: RefusedByChain | RelayBusy | NoReceipt | PredictedRefusal, poll_route: str
) -> Response:
    match outcome:
        case RefusedByChain():
            return chain_refusal_response(outcome)
        case PredictedRefusal():
            return predicted_refusal_response(outcome)
        case RelayBusy():
            return relay_busy_response()
        case NoReceipt():
            return receipt_timeout_response(outcome.tx_hash, poll_route)
        case _:
            assert_never(outcome)


def unauthorised_response(outcome: Unauthorised, *, status: int = 403) -> Response:
    return error(status, outcome.kind, outcome.message, param=None, code=outcome.code)
