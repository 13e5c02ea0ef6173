"""Seal, sign and price the jobs of a batch, with a private key in this process. No I/O."""

from collections.abc import Sequence

import attrs
import msgspec

from common import quotes
from common.box import PublicKey
from common.bundle import ORDER_UNITS_IN, BundleItem, bundle_input, bundle_units
from common.envelope import Envelope
from common.pricing.units import Units
from common.quotes import FeeTerms
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.core.batch_bids import JobLines
from svc.core.bids import Rates
from svc.core.bundles import bundle_rates
from svc.core.market import VerifiedMarket
from svc.core.money import Ceiling
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import order_amount
from svc.errors import OverCeiling

_encode = msgspec.json.Encoder().encode


@attrs.frozen(slots=True)
class JobOrder:
    """Order of one job: its lines and bid, and the recipient that can read the lines."""

    job_lines: JobLines
    recipient: PublicKey


@attrs.frozen(slots=True)
class BatchContext:
    """Values that all jobs of a batch share."""

    market: VerifiedMarket
    owner: bytes
    result_key: PublicKey
    expires_at: int
    fee_terms: FeeTerms
    ceiling: Ceiling  # for each line


@attrs.frozen(slots=True)
class PreparedJob:
    """Job that can be posted. `line_text` is its line in the batch file.

    If the container is too large for a line, `line_text` is empty and `oversized` is the order. The caller must then
    upload the order's container and sign its payment. `unlisted_parameters`: parameters that the model's schema does
    not list.
    """

    job_id: str
    amount: int
    line_text: bytes = attrs.field(repr=False)
    line_count: int
    unlisted_parameters: tuple[str, ...]
    oversized: PreparedOrder | None = None


@attrs.frozen(slots=True)
class RejectedLine:
    """Line of a batch that cannot be ordered, with the reason."""

    number: int
    refusal: Refused


def prepare_jobs(context: BatchContext, wallet: Wallet, orders: Sequence[JobOrder]) -> list[PreparedJob | RejectedLine]:
    """Prepare each job. In place of a job with a line that cannot be ordered, return this line."""
    return [_prepare_job(context, wallet, order) for order in orders]


def price_jobs(context: BatchContext, orders: Sequence[JobOrder]) -> list[int | RejectedLine]:
    """Return the amount of each job. In place of a job with a line that cannot be ordered, return this line."""
    return [_price_job(context, order) for order in orders]


def seal_job(context: BatchContext, order: JobOrder) -> SealedOrder:
    """Seal a job's lines: a single line as an ordinary input, several lines as a bundle. Raises Refused."""
    job = order.job_lines
    first, (rates, units) = job.lines[0], _order_terms(job)
    if len(job.lines) == 1:
        content, custom_id = first.input, first.custom_id
    else:
        content = bundle_input(BundleItem(line.input, line.custom_id, line.units.units_out) for line in job.lines)
        custom_id = None
    terms = OrderTerms(
        model=first.model.id,
        model_id=first.model.svc.model_id,
        modality=first.modality,
        sla_secs=first.sla_secs,
        units=units,
        rates=rates,
        designated=job.bid.designated,
        expires_at=context.expires_at,
    )
    envelope = Envelope(context.owner, first.model.id, content, context.result_key, custom_id)
    return seal_order(context.market, order.recipient, envelope, terms)


def find_rejected_line(context: BatchContext, order: JobOrder) -> RejectedLine | None:
    """Return the first line of the job that exceeds the ceiling or cannot be priced, or None."""
    rates, fees = order.job_lines.bid.rates, context.fee_terms
    for number, line in enumerate(order.job_lines.lines, order.job_lines.first_line_number):
        units = line.units
        try:
            amount = quotes.amount(rates.rate_in, rates.rate_out, units.units_in, units.units_out, fees)
            context.ceiling.check(amount, "the line")
        except OverCeiling as error:
            return RejectedLine(number, Refused(error.message, error.param, error.code))
        except Refused as refusal:
            return RejectedLine(number, refusal)
    return None


def job_amount(context: BatchContext, prepared: PreparedOrder) -> int:
    return order_amount(prepared, context.fee_terms)


def unlisted_parameters(order: JobOrder) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for line in order.job_lines.lines for name in line.unlisted_parameters))


def submission_line(prepared: PreparedOrder, amount: int, auth_sig: bytes, container_cid: str | None = None) -> bytes:
    return _encode(prepared.submission(amount, auth_sig, container_cid))


def _order_terms(job: JobLines) -> tuple[Rates, Units]:
    """Return the rates and units of a job's order. Raises Refused."""
    if len(job.lines) == 1:
        return job.bid.rates, job.lines[0].units
    rates = bundle_rates(job.bid.rates)
    units_out = bundle_units([line.units for line in job.lines], rates.rate_in, rates.rate_out)
    return rates, Units(ORDER_UNITS_IN, units_out)


def _price_job(context: BatchContext, order: JobOrder) -> int | RejectedLine:
    if (rejected := find_rejected_line(context, order)) is not None:
        return rejected
    try:
        rates, units = _order_terms(order.job_lines)
        return quotes.amount(rates.rate_in, rates.rate_out, units.units_in, units.units_out, context.fee_terms)
    except Refused as refusal:
        return RejectedLine(order.job_lines.first_line_number, refusal)


def _prepare_job(context: BatchContext, wallet: Wallet, order: JobOrder) -> PreparedJob | RejectedLine:
    if (rejected := find_rejected_line(context, order)) is not None:
        return rejected
    try:
        sealed = seal_job(context, order)
        prepared = PreparedOrder(sealed, wallet.sign(sealed.signing_request().digest), unlisted_parameters(order))
        amount = job_amount(context, prepared)
    except Refused as refusal:
        return RejectedLine(order.job_lines.first_line_number, refusal)
    lines = len(order.job_lines.lines)
    if not sealed.sealed_container.fits_inline:
        return PreparedJob(prepared.id, amount, b"", lines, prepared.unlisted_parameters, prepared)
    auth_sig = wallet.sign(prepared.payment(amount).digest)
    return PreparedJob(
        prepared.id, amount, submission_line(prepared, amount, auth_sig), lines, prepared.unlisted_parameters
    )
