"""Check and decrypt a job's payload. The only I/O is reading the spool."""

from collections.abc import Callable, Mapping

import attrs

from common.bundle import BUNDLED_MODALITIES, ORDER_UNITS_IN, BundleItem, bundle_units, is_bundle, read_bundle
from common.container import CommitmentHasher, ContainerCommitment, Opener
from common.domains import Domains
from common.envelope import Envelope
from common.pricing.model_input import Modality
from common.pricing.units import DEFAULT_OUTPUT_TOKENS, Units, units_of
from common.refusal import Refused
from common.scalars import hex_of
from common.tab.terms import ORDER_UNITS_IN as TAB_UNITS_IN
from common.tab.terms import TabTerms, is_tab
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.journal.work import BundleWork, ModelWork, TabWork
from svcd.payload.media import check_media
from svcd.payload.modality import modality_for
from svcd.payload.spool import Spool


@attrs.frozen(slots=True)
class DelegationCheck:
    """Values for checking a tab's delegation, with the current time as Unix time and as loop time."""

    domains: Domains
    provider_id: int
    unix_now: float
    loop_now: float


def check_units(modality: Modality, model_input: Mapping[str, object], *, units_in: int, units_out: int) -> None:
    """Check that the order pays for the input.

    Raise `WorkFailed` with `units_in_short` if a text is longer than the order declares, or `media_input_refused` if a
    media request is malformed or larger than the order.
    """
    if modality in ("image", "video"):
        _check_media_units(modality, model_input, units_in, units_out)
        return
    try:
        # Check only the input, because the backend limits the output.
        needed = units_of(modality, model_input, units_out=units_out).units_in
    except Refused as refusal:
        raise WorkFailed("units_in_short", str(refusal)) from None
    if needed > units_in:
        raise WorkFailed("units_in_short", f"the input has {needed} units, but the order pays for {units_in}")


def _check_media_units(modality: Modality, model_input: Mapping[str, object], units_in: int, units_out: int) -> None:
    try:
        needed = units_of(modality, model_input)
    except Refused as refusal:
        raise WorkFailed("media_input_refused", str(refusal)) from None
    for name, has, pays in (("in", needed.units_in, units_in), ("out", needed.units_out, units_out)):
        if has > pays:
            raise WorkFailed(
                "media_input_refused", f"the request needs {has} units_{name}, but the order pays for {pays}"
            )


def check_commitment(spool: Spool, c: bytes) -> ContainerCommitment:
    """Check the container in the spool against the commitment `c`, and return the commitment's parts.

    Raise `WorkFailed` with `too_short`, `bad_version`, `bad_container` or `commitment_mismatch`.
    """
    hasher = CommitmentHasher()
    try:
        for piece in spool.pieces():
            hasher.update(piece)
        found = hasher.finish()
    except Refused as refusal:
        raise _to_work_failed(refusal, "bad_container") from None
    if found.c != c:
        raise WorkFailed("commitment_mismatch", "the container does not match the order's commitment")
    return found


def open_envelope(spool: Spool, make_opener: Callable[[], Opener], owner: bytes) -> Envelope:
    """Decrypt the payload in the spool, and return its envelope.

    Raise `WorkFailed` with `unseal_failed`, `undecryptable`, `malformed_envelope` or `owner_mismatch`.
    """
    plaintext = bytearray()
    try:
        stream = make_opener()
        for piece in spool.pieces():
            plaintext += stream.pull(piece)
        plaintext += stream.finish()
        envelope = Envelope.parse(bytes(plaintext))
    except Refused as refusal:
        raise _to_work_failed(refusal, "undecryptable") from None
    if envelope.owner != owner:
        raise WorkFailed("owner_mismatch", f"the envelope has another owner, {hex_of(envelope.owner)}")
    return envelope


def build_work(
    held: ClaimedJob,
    envelope: Envelope,
    serves: frozenset[Modality],
    deadline: float,
    delegation_check: DelegationCheck | None = None,
) -> ModelWork | BundleWork | TabWork:
    """Check the envelope against the order, and return the work for the runner.

    Raise `WorkFailed` with `unservable`, `modality_unknown`, `units_in_short`, `media_input_refused` or
    `malformed_envelope`.
    """
    if envelope.model != held.model:
        raise WorkFailed("unservable", f"the payload is for {envelope.model!r}, but the order is for {held.model!r}")
    if is_bundle(envelope.input):
        return _build_bundle_work(held, envelope.input, serves, deadline)
    if is_tab(envelope.input):
        if delegation_check is None:
            raise WorkFailed("unservable", "this daemon does not run tabs")
        return _build_tab_work(held, envelope.input, serves, deadline, delegation_check)
    return build_job_work(held, envelope.input, serves, deadline)


def build_job_work(
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


def _build_bundle_work(
    held: ClaimedJob, model_input: dict[str, object], serves: frozenset[Modality], deadline: float
) -> BundleWork:
    """Check every item of a bundle against the order."""
    job = held.job
    if job.designated == 0:
        raise WorkFailed(
            "unservable", "a bundle must be designated, because the box key encrypts its items in the journal"
        )
    try:
        items = read_bundle(model_input)
    except Refused as refusal:
        raise WorkFailed("malformed_envelope", refusal.message) from None
    works = tuple(_build_item_work(held, number, item, serves, deadline) for number, item in enumerate(items))
    try:
        needed = bundle_units([Units(work.units_in, work.units_out) for work in works], job.rate_in, job.rate_out)
    except Refused as refusal:
        raise WorkFailed("units_in_short", refusal.message) from None
    if job.units_in < ORDER_UNITS_IN or job.units_out < needed:
        raise WorkFailed(
            "units_in_short", f"the bundle needs {needed} units_out, but the order pays for {job.units_out}"
        )
    return BundleWork(works, tuple(item.custom_id for item in items), deadline)


def _build_item_work(
    held: ClaimedJob, number: int, item: BundleItem, serves: frozenset[Modality], deadline: float
) -> ModelWork:
    modality = modality_for(serves, item.input, DEFAULT_OUTPUT_TOKENS if item.units_out is None else item.units_out)
    if modality not in BUNDLED_MODALITIES:
        raise WorkFailed(
            "media_input_refused", f"item {number} is {modality}, but a bundle may have only text and embeddings"
        )
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
        item_number=number,
    )


def _build_tab_work(
    held: ClaimedJob,
    model_input: dict[str, object],
    serves: frozenset[Modality],
    deadline: float,
    check: DelegationCheck,
) -> TabWork:
    """Check the terms of a tab against the order. The tab ends before its delegation expires."""
    job = held.job
    if job.designated == 0:
        raise WorkFailed("unservable", "a tab must be designated, because its channel needs the box key")
    if "text" not in serves:
        raise WorkFailed(
            "media_input_refused",
            f"a tab needs a model that serves text, but {held.model!r} serves {' and '.join(sorted(serves))}",
        )
    try:
        terms = TabTerms.read(model_input)
    except Refused as refusal:
        raise WorkFailed("malformed_envelope", refusal.message) from None
    if not terms.delegation.is_signed_by(job.owner, check.provider_id, check.domains):
        raise WorkFailed("malformed_envelope", "the delegation is not signed by the owner for this provider")
    remaining_s = terms.delegation.expires_at - check.unix_now
    if remaining_s <= 0 and not held.is_recovered:
        raise WorkFailed("malformed_envelope", "the delegation has expired")
    if job.units_in < TAB_UNITS_IN or job.units_out < 1:
        raise WorkFailed("units_in_short", "the order of a tab must have at least one unit of input and of output")
    if job.rate_in and not job.rate_out:
        raise WorkFailed("units_in_short", "the order of a tab with a rate_in needs a rate_out")
    return TabWork(terms, serves, min(deadline, check.loop_now + remaining_s))


def _to_work_failed(refusal: Refused, default_reason: str) -> WorkFailed:
    return WorkFailed(refusal.code or default_reason, refusal.message)
