"""Check and decrypt a job's payload, without I/O except for the spool."""

from collections.abc import Callable, Mapping

from common.bundle import BUNDLED, ORDER_UNITS_IN, BundleItem, bundle_units, is_bundle, read_bundle
from common.container import Commitment, Committed, Opener
from common.envelope import Envelope
from common.pricing.model_input import Modality
from common.pricing.units import DEFAULT_OUTPUT_TOKENS, Units, units_of
from common.refusal import Refused
from common.scalars import hex_of
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.journal.work import BundleWork, ModelWork
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
        needed = units_of(modality, model_input, units_out=units_out).units_in  # the backend caps its output itself
    except Refused as refusal:
        raise WorkFailed("units_in_short", str(refusal)) from None
    if needed > units_in:
        raise WorkFailed("units_in_short", f"the input has {needed} units, the order pays for {units_in}")


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
        raise WorkFailed("commitment_mismatch", "the container does not match the order's commitment")
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


def work_of(
    held: ClaimedJob, envelope: Envelope, serves: frozenset[Modality], deadline: float
) -> ModelWork | BundleWork:
    """Check the envelope against the order, and return the work.

    Raise `WorkFailed` with `unservable`, `modality_unknown`, `units_in_short`, `media_input_refused` or
    `malformed_envelope`.
    """
    if envelope.model != held.model:
        raise WorkFailed("unservable", f"the payload is for {envelope.model!r}, the order for {held.model!r}")
    if is_bundle(envelope.input):
        return _bundle_work(held, envelope.input, serves, deadline)
    return job_work(held, envelope.input, serves, deadline)


def job_work(
    held: ClaimedJob, model_input: dict[str, object], serves: frozenset[Modality], deadline: float
) -> ModelWork:
    """Check the input of a single job against the order."""
    job = held.job
    modality = modality_for(serves, model_input, job.units_out)
    check_units(modality, model_input, units_in=job.units_in, units_out=job.units_out)
    if modality in ("image", "video"):
        check_media(model_input)
    return ModelWork(
        job_id=job.job_id,
        model=held.model,
        modality=modality,
        input=model_input,
        units_in=job.units_in,
        units_out=job.units_out,
        deadline=deadline,
    )


def _bundle_work(
    held: ClaimedJob, model_input: dict[str, object], serves: frozenset[Modality], deadline: float
) -> BundleWork:
    """Check every item of a bundle against the order."""
    job = held.job
    if job.designated == 0:
        raise WorkFailed("unservable", "a bundle must be designated: its items are journaled under the box key")
    try:
        items = read_bundle(model_input)
    except Refused as refusal:
        raise WorkFailed("malformed_envelope", refusal.message) from None
    works = tuple(_item_work(held, number, item, serves, deadline) for number, item in enumerate(items))
    try:
        needed = bundle_units([Units(work.units_in, work.units_out) for work in works], job.rate_in, job.rate_out)
    except Refused as refusal:
        raise WorkFailed("units_in_short", refusal.message) from None
    if job.units_in < ORDER_UNITS_IN or job.units_out < needed:
        raise WorkFailed("units_in_short", f"the bundle needs {needed} units_out, the order pays for {job.units_out}")
    return BundleWork(works, tuple(item.custom_id for item in items), deadline)


def _item_work(
    held: ClaimedJob, number: int, item: BundleItem, serves: frozenset[Modality], deadline: float
) -> ModelWork:
    modality = modality_for(serves, item.input, DEFAULT_OUTPUT_TOKENS if item.units_out is None else item.units_out)
    if modality not in BUNDLED:
        raise WorkFailed("media_input_refused", f"item {number} is {modality}: a bundle has only texts and embeddings")
    try:
        units = units_of(modality, item.input, units_out=item.units_out)
    except Refused as refusal:
        raise WorkFailed("units_in_short", f"item {number}: {refusal.message}") from None
    return ModelWork(
        job_id=held.job.job_id,
        model=held.model,
        modality=modality,
        input=item.input,
        units_in=units.units_in,
        units_out=units.units_out,
        deadline=deadline,
        item=number,
    )


def _failed(refusal: Refused, otherwise: str) -> WorkFailed:
    return WorkFailed(refusal.code or otherwise, refusal.message)
