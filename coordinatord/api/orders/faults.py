"""Faults of submissions, and the response to each."""

from collections.abc import Sequence
from typing import Final

import attrs

from common.api import errors, limits
from common.refusal import Refused
from coordinatord.base.clock import MAX_ORDER_LIFETIME_S

_DEFAULT_LINE_CODE: Final = "invalid_line"


@attrs.frozen(slots=True)
class Fault:
    """Failed check of a submission, with the response of `POST /v1/jobs`.

    `line_code` is the code in a batch's error file, where every error has a code."""

    message: str
    param: str | None
    code: str | None
    line_code: str

    def as_refused(self) -> Refused:
        return Refused(self.message, self.param, self.code)

    @property
    def remedy(self) -> str:
        """Return the remedy from the tables of errors."""
        if self.code is not None:
            return errors.ERRORS_BY_CODE[self.code].remedy
        if self.line_code != _DEFAULT_LINE_CODE:
            return errors.LINE_ERRORS[self.line_code][1]
        return errors.UNCODED_ERRORS[400].remedy


def new_fault(message: str, param: str | None, code: str | None = None, *, line_code: str | None = None) -> Fault:
    return Fault(message, param, code, line_code or code or _DEFAULT_LINE_CODE)


_EXPIRY_MESSAGE: Final = f"expires_at must be in the next {MAX_ORDER_LIFETIME_S} seconds"
WRONG_JOB_ID: Final = new_fault("job_id must be keccak256(owner ‖ c)", "job_id")
EXPIRED: Final = new_fault(_EXPIRY_MESSAGE, "expires_at", line_code="order_expired")
EXPIRES_TOO_LATE: Final = new_fault(_EXPIRY_MESSAGE, "expires_at", line_code="expiry_too_far")
SLA_TOO_LONG: Final = new_fault(f"sla_secs must be at most {limits.MAX_SLA_S}", "sla_secs", line_code="sla_too_long")
WRONG_SIGNER: Final = new_fault("signature does not recover to owner", "signature", "invalid_order_signature")
# `POST /v1/jobs` answers this fault with a new quote.
WRONG_AMOUNT: Final = new_fault(
    "amount must be the sum of the current cap, fee and gas_fee", "amount", line_code="insufficient_payment"
)
WRONG_PAYER: Final = new_fault("auth_sig does not recover to owner", "auth_sig", "invalid_payment_signature")
UNKNOWN_UPLOAD: Final = new_fault(
    "container_cid must name a live input upload of the owner", "container_cid", "unknown_container"
)
WRONG_UPLOAD: Final = new_fault(
    "the upload of container_cid does not match the commitment c", "container_cid", "commitment_mismatch"
)
MODEL_NOT_ENABLED: Final = new_fault("model_id must be an enabled model", "model_id", line_code="invalid_model")
SLA_NOT_ALLOWED: Final = new_fault("sla_secs must be one of `windows` of GET /evm/chain", "sla_secs")
PAYER_HAS_CODE: Final = new_fault(
    "owner has contract code; pay from an account without code", "owner", "payer_has_code"
)


def sla_not_allowed(windows: Sequence[int] | None) -> Fault:
    """Return the fault of a window that the market does not accept. Name the accepted windows if they are known."""
    if not windows:
        return SLA_NOT_ALLOWED
    named = ", ".join(map(str, windows))
    message = f"sla_secs must be a window of the market: one of {named} (`windows` of GET /evm/chain)"
    return attrs.evolve(SLA_NOT_ALLOWED, message=message)
