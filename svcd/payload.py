"""A job's payload, from the container's bytes to the work that it orders. Nothing here waits for anything."""

from collections.abc import Callable

import attrs

from common.container import Commitment, Committed, Opener
from common.envelope import Envelope
from common.pricing.request_shape import Modality
from common.refusal import Refused
from common.scalars import hex_of
from svcd.failures import JobFailed
from svcd.held import Held
from svcd.media import check_media
from svcd.modality import modality_for
from svcd.spool import Spool
from svcd.units import check_units


def committed(spool: Spool, c: bytes) -> Committed:
    """`JobFailed` (`too_short`, `bad_version`, `bad_container`, `commitment_mismatch`) unless it is what `c` names."""
    hasher = Commitment()
    try:
        for piece in spool.pieces():
            hasher.update(piece)
        found = hasher.finish()
    except Refused as refusal:
        raise _failed(refusal, "bad_container") from None
    if found.c != c:
        raise JobFailed("commitment_mismatch", "the container is not the one that the order names")
    return found


def opened(spool: Spool, opener: Callable[[], Opener], owner: bytes) -> Envelope:
    """`JobFailed`: `unseal_failed`, `undecryptable`, `malformed_envelope`, `owner_mismatch`."""
    plaintext = bytearray()
    try:
        stream = opener()
        for piece in spool.pieces():
            plaintext += stream.pull(piece)
        plaintext += stream.finish()
        envelope = Envelope.parse(bytes(plaintext))
    except Refused as refusal:
        raise _failed(refusal, "undecryptable") from None
    if envelope.owner != owner:
        raise JobFailed("owner_mismatch", f"the envelope is {hex_of(envelope.owner)}'s")
    return envelope


@attrs.frozen(slots=True)
class Ordered:
    """What the order pays for, checked against what the payload holds."""

    modality: Modality
    input: dict[str, object]


def ordered(held: Held, envelope: Envelope, serves: frozenset[Modality]) -> Ordered:
    """`JobFailed`: `unservable`, `modality_unknown`, `units_in_short`, `media_input_refused`."""
    if envelope.model != held.model:
        raise JobFailed("unservable", f"the payload is for {envelope.model!r}, the order for {held.model!r}")
    job = held.job
    modality = modality_for(serves, envelope.input, job.units_out)
    check_units(modality, envelope.input, units_in=job.units_in, units_out=job.units_out)
    if modality in ("image", "video"):
        check_media(envelope.input)
    return Ordered(modality, envelope.input)


def _failed(refusal: Refused, otherwise: str) -> JobFailed:
    return JobFailed(refusal.code or otherwise, refusal.message)
