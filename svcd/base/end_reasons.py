"""Reasons why a job ends without a settle, as shown in /metrics and the log.

A stage ends a job by raising `WorkFailed`. The reason decides whether svcd signs a `fail`, which refunds the client at
once. `backend_fault` decides whether the backend's circuit breaker counts the failure.
"""

from typing import Final, Literal, get_args

import attrs

# For these reasons, svcd sends no `fail`. The owner can reclaim the job after its window.
UNPAID: Final = "unpaid"  # the job ran ahead and its claim was refused, so there is no claim to fail
_REASONS_WITHOUT_FAIL: Final = frozenset({"sla_abandon", "internal_error", UNPAID})
# For these reasons, and for settle_http_*, svcd sends a `fail`. Every other reason that begins with settle_ means that
# the chain rejected the settle. svcd then sends no `fail`.
_SETTLE_REASONS_WITH_FAIL: Final = frozenset(
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
    # error codes of the escrow
    *("stale_issued_at", "wrap_mismatch", "wrong_wallet", "no_claim", "not_claimed", "escrow_key_lost"),
    *("modality_unknown", "task_unresolved", "claim_expired", "unservable", UNPAID),
    # the job registry's errors for a settle
    *("settle_SlaExpired", "settle_NotClaimed", "settle_NotTheClaimer", "settle_StaleOp", "settle_TooManyUnits"),
    *("settle_UnknownJob", "settle_UnknownProvider", "settle_InvalidSignature", "settle_InvalidCid"),
    *sorted(_SETTLE_REASONS_WITH_FAIL),
    *(f"settle_http_{status}" for status in (400, 401, 429, 500, 502, 503, 504)),
    *(f"session_http_{status}" for status in (400, 401, 403, 429, 500, 502, 503)),
)


# Reasons to withhold claims, because a claimed job would fail and cost reputation. `svcd/stages/guard.py` checks them.
ClaimHoldReason = Literal["box_key", "clock", "backend", "model_name", "window", "other_daemon"]
CLAIM_HOLD_REASONS: Final[tuple[ClaimHoldReason, ...]] = get_args(ClaimHoldReason)


@attrs.frozen(slots=True)
class WorkFailed(Exception):
    """Failure that ends a job without a settle. `reason` is a code of the specification, and `detail` is logged."""

    reason: str
    detail: str = ""
    backend_fault: bool = False  # counts against the backend's circuit breaker

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason

    @property
    def sends_fail(self) -> bool:
        if self.reason in _REASONS_WITHOUT_FAIL:
            return False
        is_chain_reason = self.reason.startswith("settle_") and not self.reason.startswith("settle_http_")
        return not is_chain_reason or self.reason in _SETTLE_REASONS_WITH_FAIL
