"""Reasons why a job ended without a settle, as in /metrics and the log.

A stage ends a job by raising `WorkFailed`. The reason decides whether a signed `fail` refunds the client at once. The
error also says whether the backend's circuit breaker counts it.
"""

from typing import Final, Literal, get_args

import attrs

# Reasons under which no `fail` is sent: the job is left to be reclaimed.
UNPAID: Final = "unpaid"  # the job ran ahead and its claim was refused, so there is no claim to fail
_WITHOUT_FAIL: Final = frozenset({"sla_abandon", "internal_error", UNPAID})
# Reasons that begin with `settle_` but are not contract errors. After a contract error no `fail` is sent, because the
# job has already ended or the chain would refuse the fail as well.
_SETTLE_TROUBLE: Final = frozenset(
    {
        "settle_rejected",
        "settle_reverted",
        "settle_upload_invalid",
        "settle_result_too_large",
        "settle_transport_error",
    }
)

# The chain and the coordinator may add further reasons.
KNOWN_REASONS: Final = (
    *("backend_error", "backend_exhausted", "deadline_wait", "media_input_refused", "sla_abandon", "internal_error"),
    *("too_short", "bad_version", "commitment_mismatch", "bad_container"),
    *("undecryptable", "malformed_envelope", "owner_mismatch", "units_in_short"),
    *("unseal_failed", "not_our_bid", "no_cipher", "escrow_unavailable", "escrow_unreachable"),
    # the escrow's own codes
    *("stale_issued_at", "wrap_mismatch", "wrong_wallet", "no_claim", "not_claimed", "escrow_key_lost"),
    *("modality_unknown", "task_unresolved", "claim_expired", "unservable", UNPAID),
    # the job registry's errors for a settle
    *("settle_SlaExpired", "settle_NotClaimed", "settle_NotTheClaimer", "settle_StaleOp", "settle_TooManyUnits"),
    *("settle_UnknownJob", "settle_UnknownProvider", "settle_InvalidSignature", "settle_InvalidCid"),
    *sorted(_SETTLE_TROUBLE),
    *(f"settle_http_{status}" for status in (400, 401, 429, 500, 502, 503, 504)),
    *(f"session_http_{status}" for status in (400, 401, 403, 429, 500, 502, 503)),
)

# Reasons not to claim: the job would fail, which costs reputation. `svcd/stages/health.py` sets them.
HoldReason = Literal["box_key", "clock", "backend", "model_name", "window", "other_daemon"]
HOLD_REASONS: Final[tuple[HoldReason, ...]] = get_args(HoldReason)


@attrs.frozen(slots=True)
class WorkFailed(Exception):
    """Raised to end a job without a settle. `reason` is one of the specification's; `detail` is logged."""

    reason: str
    detail: str = ""
    backend_fault: bool = False  # counts against the backend's circuit breaker

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason

    @property
    def sends_fail(self) -> bool:
        if self.reason in _WITHOUT_FAIL:
            return False
        by_the_chain = self.reason.startswith("settle_") and not self.reason.startswith("settle_http_")
        return not by_the_chain or self.reason in _SETTLE_TROUBLE
