"""Explain each reason why a job ended without a settle: its cause, and the operator's remedy."""

from typing import Final

_SERVER_REMEDY: Final = "Read the model server's log; check it with `svcd try`."
_GATEWAY_REMEDY: Final = "Check the gateways with `svcd check`."
_BOX_KEY_REMEDY: Final = (
    "Check the box key with `svcd check`. If the key is right, the client sealed the order wrongly."
)
_CLIENT_REMEDY: Final = "Nothing to do: the client's order was wrong."
_ESCROW_REMEDY: Final = "Nothing to do for one job. If it repeats, report it to the coordinator's operator."
_COORDINATOR_REMEDY: Final = "Check the coordinator with `svcd check`."
_LATE_REMEDY: Final = "Raise margin_seconds, lower slots, or publish longer windows only."

# Documented in docs/providers/reference.md.
_CAUSE_AND_REMEDY_BY_REASON: Final[dict[str, tuple[str, str]]] = {
    "backend_error": ("the backend refused the request", _SERVER_REMEDY),
    "backend_exhausted": ("the backend failed all retries", _SERVER_REMEDY),
    "deadline_wait": ("the next retry would have come after the deadline", _SERVER_REMEDY),
    "sla_abandon": ("the backend did not finish before the deadline", _LATE_REMEDY),
    "internal_error": ("a bug in svcd", "Report the stack trace in the log."),
    **dict.fromkeys(
        ("too_short", "bad_version", "bad_container", "commitment_mismatch"),
        ("the gateways served other content than the order's payload", _GATEWAY_REMEDY),
    ),
    "task_unresolved": ("no gateway has the payload, or none answered in time", _GATEWAY_REMEDY),
    **dict.fromkeys(("unseal_failed", "undecryptable"), ("the payload cannot be decrypted", _BOX_KEY_REMEDY)),
    **dict.fromkeys(
        ("malformed_envelope", "owner_mismatch"), ("the payload is malformed or of another owner", _CLIENT_REMEDY)
    ),
    **dict.fromkeys(("units_in_short", "media_input_refused"), ("the input exceeds the payment", _CLIENT_REMEDY)),
    "modality_unknown": ("the request does not show its modality", _CLIENT_REMEDY),
    "unservable": ("the daemon was stopping, or the order is for another model", "Check [[model]] if it repeats."),
    "not_our_bid": ("the job is designated to another provider", "Check the box key with `svcd check`."),
    "no_cipher": ("the job needs a box key, but none is configured", "Set box under [keys]."),
    **dict.fromkeys(("escrow_unavailable", "escrow_unreachable"), ("the escrow gave no key", _ESCROW_REMEDY)),
    **dict.fromkeys(
        ("stale_issued_at", "wrap_mismatch", "wrong_wallet", "no_claim", "not_claimed", "escrow_key_lost"),
        ("the escrow refused to release the key", _ESCROW_REMEDY),
    ),
    "unpaid": (
        "the job ran ahead of its claim, and the claim was refused",
        "Lower the limits of [model.ahead] if it repeats.",
    ),
    "claim_expired": ("the job was found too late after a restart, or another party ended it", "Keep svcd running."),
    "settle_rejected": ("the registry does not know the wallet", "Check with `svcd check` that the wallet is listed."),
    "settle_reverted": ("the settle was mined and reverted", _COORDINATOR_REMEDY),
    "settle_upload_invalid": ("the upload of the result returned no content id", _COORDINATOR_REMEDY),
    "settle_result_too_large": (
        "the result is above the coordinator's limit",
        "Lower the highest output of the model server.",
    ),
    "settle_transport_error": ("the coordinator did not answer until the window ended", _COORDINATOR_REMEDY),
    "settle_SlaExpired": ("the settle came after the window", _LATE_REMEDY),
    "settle_StaleOp": ("the settle was signed with a wrong time", "Set the clock (timedatectl set-ntp true)."),
}


def explain_reason(reason: str) -> tuple[str, str]:
    """Return what caused a job to fail for this reason code, and what the provider can do about it."""
    if reason in _CAUSE_AND_REMEDY_BY_REASON:
        return _CAUSE_AND_REMEDY_BY_REASON[reason]
    if reason.startswith(("settle_http_", "session_http_")):
        return f"the coordinator answered {reason.rpartition('_')[2]} until the window ended", _COORDINATOR_REMEDY
    if reason.startswith("settle_"):
        return "the chain refused the settle", "Read the log of this job."
    return "unknown", "Read the log of this job."
