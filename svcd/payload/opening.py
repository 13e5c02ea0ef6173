"""A job's payload, from the container's bytes to the work that it orders. Nothing here waits for anything."""

import math
import re
from collections.abc import Callable, Mapping, Set
from typing import Final

import attrs

from common.container import Commitment, Committed, Opener
from common.envelope import Envelope
from common.pricing.model_input import Modality, modality_of
from common.pricing.units import units_of
from common.refusal import Refused
from common.scalars import MAX_SAFE_INTEGER, hex_of
from common.strict_json import MAX_DEPTH
from svcd.base.errors import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.payload.gateway import Spool
from svcd.payload.media import check_media

# Modality of an opened input, for a model that is known to serve certain kinds.


def modality_for(serves: Set[Modality], model_input: Mapping[str, object], units_out: int) -> Modality:
    """`serves` is what the model's configuration says. The input's shape decides between several; where it says only
    "text", which is also the shape of a bare prompt, a model of one kind takes it as that kind.

    `WorkFailed`: `modality_unknown` where nothing decides, `media_input_refused` where the input asks for an image or a
    video of a model that makes none.
    """
    if len(serves) == 1 and "embeddings" in serves:
        return "embeddings"
    shape = modality_of(None, model_input)
    if "embeddings" in serves and shape == "text" and units_out == 0:
        return "embeddings"  # only an embeddings order pays for no output
    if shape in serves:
        return shape
    if shape == "text" and len(serves) == 1:
        return next(iter(serves))
    if shape == "text":
        raise WorkFailed("modality_unknown", f"a bare prompt for a model that serves {_listed(serves)}")
    raise WorkFailed("media_input_refused", f"the input asks for {shape}, the model serves {_listed(serves)}")


def _listed(serves: Set[Modality]) -> str:
    return " and ".join(sorted(serves)) or "nothing"


# Units of the opened payload, compared with what the order pays for. The coordinator opens none, and cannot know.


def check_units(modality: Modality, model_input: Mapping[str, object], *, units_in: int, units_out: int) -> None:
    """`WorkFailed`: `units_in_short` for a text that is longer than declared; `media_input_refused` for a media request
    whose references, frames or images come to more than the order pays for, or that is malformed."""
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
            raise WorkFailed(
                "media_input_refused", f"the request comes to {has} units_{name}, the order pays for {pays}"
            )


def committed(spool: Spool, c: bytes) -> Committed:
    """`WorkFailed` (`too_short`, `bad_version`, `bad_container`, `commitment_mismatch`) unless it is what `c` names."""
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
    """`WorkFailed`: `unseal_failed`, `undecryptable`, `malformed_envelope`, `owner_mismatch`."""
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
    """What the order pays for, checked against what the payload holds."""

    modality: Modality
    input: dict[str, object]


def ordered(held: ClaimedJob, envelope: Envelope, serves: frozenset[Modality]) -> Ordered:
    """`WorkFailed`: `unservable`, `modality_unknown`, `units_in_short`, `media_input_refused`."""
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


# Making a model server's JSON fit for a sealed result, whose canonical JSON knows less than such servers write.
#
# What has no place there is written in its nearest way: NUL and lone surrogates (a model may well emit them) become
# U+FFFD, NaN and infinities null, integers beyond ±(2^53−1) (seeds are often 64 bits wide) decimal strings.

_NOT_IN_TEXTS: Final = re.compile("[\x00\ud800-\udfff]")
_DEEPEST: Final = MAX_DEPTH - 1  # the result's own object is round it


def sealable(value: object, depth: int = 0) -> object:
    """A value that `common.canonical_json.canonical` takes inside of a result. `Refused` where it nests too deep."""
    if isinstance(value, str):
        return _whole_text(value) if _NOT_IN_TEXTS.search(value) else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == _DEEPEST:
        raise Refused(f"it nests deeper than {_DEEPEST}")
    if isinstance(value, dict):
        return {str(sealable(key)): sealable(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [sealable(inner, depth + 1) for inner in value]
    raise TypeError(f"{type(value).__name__} is no JSON type")


def _whole_text(text: str) -> str:
    """Streams may part a pair of surrogates: those that meet again are one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\x00", "\ufffd")
