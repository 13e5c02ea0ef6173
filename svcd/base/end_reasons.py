"""Reasons for which a job ended without a settle. /metrics counts them and the log names them.

A stage ends a job by raising `WorkFailed`. The reason decides whether a signed `fail` refunds the client at once. The
error also says whether the backend's circuit breaker counts it.
"""

from typing import Final, Literal, get_args

import attrs

# Reasons under which no `fail` is sent: the job is left to be reclaimed.
UNPAID: Final = "unpaid"  # run ahead of a claim that was refused: nobody holds the job, so nothing is left to fail
_WITHOUT_FAIL: Final = frozenset({"sla_abandon", "internal_error", UNPAID})
# Of the reasons that begin with `settle_`, those that are not a contract's error. After a contract's error no `fail`
# is sent: the chain has ended the job already, or refuses us in any case.
_SETTLE_TROUBLE: Final = frozenset(
    {
        "settle_rejected",
        "settle_reverted",
        "settle_upload_invalid",
        "settle_result_too_large",
        "settle_transport_error",
    }
)

# Every reason whose name is known beforehand. (The chain and the coordinator may have further names of their own.)
KNOWN_REASONS: Final = (
    *("backend_error", "backend_exhausted", "deadline_wait", "media_input_refused", "sla_abandon", "internal_error"),
    *("too_short", "bad_version", "commitment_mismatch", "bad_container"),
    *("undecryptable", "malformed_envelope", "owner_mismatch", "units_in_short"),
    *("unseal_failed", "not_our_bid", "no_cipher", "escrow_unavailable", "escrow_unreachable"),
    # the escrow's own codes
    *("stale_issued_at", "wrap_mismatch", "wrong_wallet", "no_claim", "not_claimed", "escrow_key_lost"),
    *("modality_unknown", "task_unresolved", "claim_expired", "unservable", UNPAID),
    # what the job registry can say to a settle
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
    """This job will not be settled by us. `reason` is one of the specification's, `detail` is for the log."""

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
