"""Outcomes of a signed op, an upload, a release or a publication, as far as the coordinator told."""

from typing import TypeAlias

import attrs

from svcd.coordinator.sessions import SignInRefused


@attrs.frozen(slots=True)
class Unanswered:
    """The connection failed, or no answer came in time: the request may have taken effect."""

    detail: str


@attrs.frozen(slots=True)
class OpMined:
    """`succeeded` is False for a transaction that is mined and reverted."""

    tx_hash: str
    succeeded: bool


@attrs.frozen(slots=True)
class OpStored:
    """The coordinator has it, and will send it; how it ends is told to who sends the same again."""


@attrs.frozen(slots=True)
class ChainRefused:
    """The chain refuses the op, or would: nothing took effect. `reason` is the contract error's name."""

    reason: str


@attrs.frozen(slots=True)
class OpPending:
    """Broadcast and not mined within the coordinator's patience: it may take effect yet."""

    tx_hash: str


@attrs.frozen(slots=True)
class CoordinatorRefusal:
    """Any other answer that is no success."""

    status: int
    code: str | None


@attrs.frozen(slots=True)
class Published:
    """The asks are on the chain."""


@attrs.frozen(slots=True)
class Uploaded:
    """`cid` is None when the answer named none."""

    cid: str | None


@attrs.frozen(slots=True)
class ReleasedKey:
    """The payload key, sealed to the key that was asked for."""

    dek_sealed: bytes


OpOutcome: TypeAlias = OpMined | ChainRefused | OpPending | CoordinatorRefusal | Unanswered | SignInRefused
UploadOutcome: TypeAlias = Uploaded | CoordinatorRefusal | Unanswered | SignInRefused
PublishOutcome: TypeAlias = Published | CoordinatorRefusal | Unanswered | SignInRefused
ReleaseOutcome: TypeAlias = ReleasedKey | CoordinatorRefusal | Unanswered


def describe(outcome: OpOutcome | UploadOutcome | ReleaseOutcome) -> str:
    """For a log line."""
    match outcome:
        case ChainRefused():
            return outcome.reason
        case CoordinatorRefusal() | SignInRefused():
            detail = outcome.code if isinstance(outcome, CoordinatorRefusal) else outcome.detail
            return f"answered {outcome.status}: {detail}"
        case Unanswered():
            return outcome.detail
        case OpPending():
            return f"pending in {outcome.tx_hash}"
        case OpMined(succeeded=False):
            return f"mined and reverted in {outcome.tx_hash}"
        case _:
            return "done"
