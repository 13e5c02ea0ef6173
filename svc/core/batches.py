"""Turn the lines of a batch into complete submissions, with a key in this process. No I/O."""

from collections.abc import Sequence

import attrs
import msgspec

from common.box import PublicKey
from common.envelope import Envelope
from common.quotes import FeeTerms
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.core.bids import Bid
from svc.core.market import Market
from svc.core.money import Ceiling
from svc.core.order_request import OrderRequest, PricedRequest, price_request
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import amount_of
from svc.errors import OverCeiling
from svc.records import Model

_encode = msgspec.json.Encoder().encode


@attrs.frozen(slots=True)
class LineOrder:
    """Order of one line: request, bid, and the recipient who may read it."""

    request: OrderRequest
    model: Model
    bid: Bid
    recipient: PublicKey


@attrs.frozen(slots=True)
class BatchContext:
    """Values that all lines of a batch share."""

    market: Market
    owner: bytes
    result_key: PublicKey
    expires_at: int
    fees: FeeTerms
    ceiling: Ceiling  # of each line


@attrs.frozen(slots=True)
class PreparedLine:
    """Line that can be posted. `text` is its JSON.

    A line with a container that is too large has `oversized` instead. Its container must still be uploaded and its
    payment signed. `unlisted`: parameters that the model's schema does not list.
    """

    job_id: str
    amount: int
    text: bytes = attrs.field(repr=False)
    unlisted: tuple[str, ...]
    oversized: PreparedOrder | None = None


def prepare_lines(context: BatchContext, wallet: Wallet, portion: Sequence[LineOrder]) -> list[PreparedLine | Refused]:
    """Prepare each line, or return why it is rejected."""
    return [_prepare_line(context, wallet, line) for line in portion]


def seal_line(context: BatchContext, line: LineOrder) -> tuple[SealedOrder, PricedRequest]:
    """Price and seal a line. Raises Refused."""
    priced = price_request(line.request, line.model)
    terms = OrderTerms(
        model=priced.model.id,
        model_id=priced.model.svc.model_id,
        modality=priced.modality,
        sla_secs=priced.sla_secs,
        units=priced.units,
        rates=line.bid.rates,
        designated=line.bid.designated,
        expires_at=context.expires_at,
    )
    envelope = Envelope(context.owner, priced.model.id, priced.input, context.result_key, priced.custom_id)
    return seal_order(context.market, line.recipient, envelope, terms), priced


def line_amount(context: BatchContext, prepared: PreparedOrder) -> int:
    """Return the amount of a line's payment. Raises Refused above the ceiling, before the payment is signed."""
    amount = amount_of(prepared, context.fees)
    try:
        context.ceiling.check(amount, "it")
    except OverCeiling as error:
        raise Refused(error.message, error.param, error.code) from None
    return amount


def line_of(prepared: PreparedOrder, amount: int, auth_sig: bytes, container_cid: str | None = None) -> bytes:
    return _encode(prepared.submission(amount, auth_sig, container_cid))


def _prepare_line(context: BatchContext, wallet: Wallet, line: LineOrder) -> PreparedLine | Refused:
    try:
        sealed, priced = seal_line(context, line)
        prepared = PreparedOrder(sealed, wallet.sign(sealed.to_sign().digest), priced.unlisted)
        amount = line_amount(context, prepared)
    except Refused as refusal:
        return refusal
    if not sealed.sealed.fits_inline:
        return PreparedLine(prepared.id, amount, b"", prepared.unlisted, prepared)
    auth_sig = wallet.sign(prepared.payment(amount).digest)
    return PreparedLine(prepared.id, amount, line_of(prepared, amount, auth_sig), prepared.unlisted)
