"""How a signed op, an upload, a release or a publication ended, as far as the coordinator told."""

from typing import TypeAlias

import attrs

from svcd.coordinator.requests import NoAnswer
from svcd.coordinator.sessions import SignInRefused


@attrs.frozen(slots=True)
class Mined:
    """`succeeded` is False for a transaction that is mined and reverted."""

    tx_hash: str
    succeeded: bool


@attrs.frozen(slots=True)
class ChainRefused:
    """The chain refuses the op, or would: nothing took effect. `reason` is the contract error's name."""

    reason: str


@attrs.frozen(slots=True)
class StillPending:
    """Broadcast and not mined within the coordinator's patience: it may take effect yet."""

    tx_hash: str


@attrs.frozen(slots=True)
class Refused:
    """Any other answer that is no success."""

    status: int
    code: str | None


@attrs.frozen(slots=True)
class Uploaded:
    """`cid` is None when the answer named none."""

    cid: str | None


@attrs.frozen(slots=True)
class Released:
    """The payload key, sealed to the key that was asked for."""

    dek_sealed: bytes


OpOutcome: TypeAlias = Mined | ChainRefused | StillPending | Refused | NoAnswer | SignInRefused
UploadOutcome: TypeAlias = Uploaded | Refused | NoAnswer | SignInRefused
ReleaseOutcome: TypeAlias = Released | Refused | NoAnswer


def describe(outcome: OpOutcome | UploadOutcome | ReleaseOutcome) -> str:
    """For a log line."""
    match outcome:
        case ChainRefused():
            return outcome.reason
        case Refused() | SignInRefused():
            return f"answered {outcome.status}: {outcome.code if isinstance(outcome, Refused) else outcome.detail}"
        case NoAnswer():
            return outcome.detail
        case StillPending():
            return f"pending in {outcome.tx_hash}"
        case Mined(succeeded=False):
            return f"mined and reverted in {outcome.tx_hash}"
        case _:
            return "done"
