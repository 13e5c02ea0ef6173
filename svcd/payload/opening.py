"""Check and decrypt a job's payload, without I/O except for the spool."""

from collections.abc import Callable, Mapping

import attrs

from common.container import Commitment, Committed, Opener
from common.envelope import Envelope
from common.pricing.model_input import Modality
from common.pricing.units import units_of
from common.refusal import Refused
from common.scalars import hex_of
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.payload.media import check_media
from svcd.payload.modality import modality_for
from svcd.payload.spool import Spool


def check_units(modality: Modality, model_input: Mapping[str, object], *, units_in: int, units_out: int) -> None:
    """Check that the order pays for the input.

    Raise `WorkFailed` with `units_in_short` for a text longer than declared, or `media_input_refused` for a media
    request that is malformed or larger than ordered.
    """
    if modality in ("image", "video"):
        _check_media(modality, model_input, units_in, units_out)
        return
    try:
        needed = units_of(modality, model_input, units_out=units_out).units_in  # the backend holds its output to less
    except Refused as refusal:
        raise WorkFailed("units_in_short", str(refusal)) from None
    if needed > units_in:
        raise WorkFailed("units_in_short", f"the input comes to {needed} units, the order pays for {units_in}")


def _check_media(modality: Modality, model_input: Mapping[str, object], units_in: int, units_out: int) -> None:
    try:
        needed = units_of(modality, model_input)
    except Refused as refusal:
        raise WorkFailed("media_input_refused", str(refusal)) from None
    for name, has, pays in (("in", needed.units_in, units_in), ("out", needed.units_out, units_out)):
        if has > pays:
            raise WorkFailed("media_input_refused", f"the request needs {has} units_{name}, the order pays for {pays}")


def committed(spool: Spool, c: bytes) -> Committed:
    """Return the container if it matches the commitment `c`.

    Raise `WorkFailed` with `too_short`, `bad_version`, `bad_container` or `commitment_mismatch`.
    """
    hasher = Commitment()
    try:
        for piece in spool.pieces():
            hasher.update(piece)
        found = hasher.finish()
    except Refused as refusal:
        raise _failed(refusal, "bad_container") from None
    if found.c != c:
        raise WorkFailed("commitment_mismatch", "the container is not the one that the order names")
    return found


def opened(spool: Spool, opener: Callable[[], Opener], owner: bytes) -> Envelope:
    """Decrypt the payload.

    Raise `WorkFailed` with `unseal_failed`, `undecryptable`, `malformed_envelope` or `owner_mismatch`.
    """
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
        raise WorkFailed("owner_mismatch", f"the envelope is {hex_of(envelope.owner)}'s")
    return envelope


@attrs.frozen(slots=True)
class Ordered:
    """Input of a job, checked against its order."""

    modality: Modality
    input: dict[str, object]


def ordered(held: ClaimedJob, envelope: Envelope, serves: frozenset[Modality]) -> Ordered:
    """Check the envelope against the order.

    Raise `WorkFailed` with `unservable`, `modality_unknown`, `units_in_short` or `media_input_refused`.
    """
    if envelope.model != held.model:
        raise WorkFailed("unservable", f"the payload is for {envelope.model!r}, the order for {held.model!r}")
    job = held.job
    modality = modality_for(serves, envelope.input, job.units_out)
    check_units(modality, envelope.input, units_in=job.units_in, units_out=job.units_out)
    if modality in ("image", "video"):
        check_media(envelope.input)
    return Ordered(modality, envelope.input)


def _failed(refusal: Refused, otherwise: str) -> WorkFailed:
    return WorkFailed(refusal.code or otherwise, refusal.message)
