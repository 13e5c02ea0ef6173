"""The specification's name for each way in which a result was not taken."""

import httpx

from svcd.coordinator.outcomes import Refused
from svcd.coordinator.sessions import SignInRefused
from svcd.failures import JobFailed


def refused(outcome: Refused) -> JobFailed:
    match outcome.status:
        case httpx.codes.FORBIDDEN:
            return JobFailed("settle_rejected", outcome.code or "")
        case httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return JobFailed("settle_result_too_large", outcome.code or "")
        case status:
            return JobFailed(f"settle_http_{status}", outcome.code or "")


def sign_in_refused(outcome: SignInRefused) -> JobFailed:
    if outcome.status is None:
        return JobFailed("settle_transport_error", f"no session: {outcome.detail}")
    return JobFailed(f"session_http_{outcome.status}", outcome.detail)
