"""Possible outcomes of a signed op, an upload, a key release or a publication of asks."""

from typing import TypeAlias

import attrs

from svcd.coordinator.sessions import SignInRefused


@attrs.frozen(slots=True)
class Unanswered:
    """The connection failed, or no response came in time. The request may have taken effect."""

    detail: str


@attrs.frozen(slots=True)
class OpMined:
    """The op is mined. `succeeded` is False if its transaction reverted."""

    tx_hash: str
    succeeded: bool


@attrs.frozen(slots=True)
class OpStored:
    """The coordinator stored the op and will broadcast it. To read the outcome, send the same op again."""


@attrs.frozen(slots=True)
class ChainRefused:
    """The chain rejects the op, so nothing took effect. `reason` is the contract error's name."""

    reason: str


@attrs.frozen(slots=True)
class OpPending:
    """The op was broadcast but not mined within the coordinator's timeout. The op may still take effect."""

    tx_hash: str


@attrs.frozen(slots=True)
class CoordinatorRefusal:
    """The coordinator returned an error other than a chain refusal or a pending op."""

    status: int
    code: str | None


@attrs.frozen(slots=True)
class AsksPublished:
    """The asks are on the chain."""


@attrs.frozen(slots=True)
class Uploaded:
    """The file was uploaded. `cid` is None if the response has no content id."""

    cid: str | None


@attrs.frozen(slots=True)
class ReleasedKey:
    """Data key of a payload, sealed to the public key in the request."""

    dek_sealed: bytes


OpOutcome: TypeAlias = OpMined | ChainRefused | OpPending | CoordinatorRefusal | Unanswered | SignInRefused
UploadOutcome: TypeAlias = Uploaded | CoordinatorRefusal | Unanswered | SignInRefused
PublishOutcome: TypeAlias = AsksPublished | CoordinatorRefusal | Unanswered | SignInRefused
ReleaseOutcome: TypeAlias = ReleasedKey | CoordinatorRefusal | Unanswered


def describe_outcome(outcome: OpOutcome | UploadOutcome | ReleaseOutcome) -> str:
    """Return the outcome as text for the log."""
    match outcome:
        case ChainRefused():
            return outcome.reason
        case CoordinatorRefusal() | SignInRefused():
            detail = outcome.code if isinstance(outcome, CoordinatorRefusal) else outcome.detail
            return f"status {outcome.status}: {detail}"
        case Unanswered():
            return outcome.detail
        case OpPending():
            return f"pending in {outcome.tx_hash}"
        case OpMined(succeeded=False):
            return f"mined and reverted in {outcome.tx_hash}"
        case _:
            return "done"
