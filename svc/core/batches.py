"""Lines of a batch, made into complete submissions by a key in this process.

This module computes and does no I/O.
"""

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
from svc.core.order_request import OrderRequest, Shaped, shape
from svc.core.orders import OrderTerms, PreparedOrder, SealedOrder, seal_order
from svc.core.quote_check import amount_of
from svc.errors import OverCeiling
from svc.records import Model

_encode = msgspec.json.Encoder().encode


@attrs.frozen(slots=True)
class LineWork:
    """One line: what is asked for, what is offered for it, and who may read it."""

    request: OrderRequest
    model: Model
    bid: Bid
    recipient: PublicKey


@attrs.frozen(slots=True)
class Place:
    """What all lines of a batch share."""

    market: Market
    owner: bytes
    result_key: PublicKey
    expires_at: int
    fees: FeeTerms
    ceiling: Ceiling  # of each line


@attrs.frozen(slots=True)
class PreparedLine:
    """A line that can be posted: `text` is its JSON. One whose container is too large for it is still to be uploaded
    and paid for, and is `oversized` instead. `unlisted`: parameters that the model's schema does not name."""

    job_id: str
    amount: int
    text: bytes = attrs.field(repr=False)
    unlisted: tuple[str, ...]
    oversized: PreparedOrder | None = None


def prepare_lines(place: Place, wallet: Wallet, portion: Sequence[LineWork]) -> list[PreparedLine | Refused]:
    """Each line, or why the model cannot take it or it cannot be sealed."""
    return [_prepared(place, wallet, line) for line in portion]


def seal_line(place: Place, line: LineWork) -> tuple[SealedOrder, Shaped]:
    """Raises Refused."""
    shaped = shape(line.request, line.model)
    terms = OrderTerms(
        model=shaped.model.id,
        model_id=shaped.model.svc.model_id,
        modality=shaped.modality,
        sla_secs=shaped.sla_secs,
        units=shaped.units,
        rates=line.bid.rates,
        designated=line.bid.designated,
        expires_at=place.expires_at,
    )
    envelope = Envelope(place.owner, shaped.model.id, shaped.input, place.result_key, shaped.custom_id)
    return seal_order(place.market, line.recipient, envelope, terms), shaped


def line_amount(place: Place, prepared: PreparedOrder) -> int:
    """The amount of a line's payment. Raises Refused above the ceiling: nothing is signed for it then."""
    amount = amount_of(prepared, place.fees)
    try:
        place.ceiling.check(amount, "it")
    except OverCeiling as over:
        raise Refused(over.message, over.param, over.code) from None
    return amount


def line_of(prepared: PreparedOrder, amount: int, auth_sig: bytes, container_cid: str | None = None) -> bytes:
    return _encode(prepared.submission(amount, auth_sig, container_cid))


def _prepared(place: Place, wallet: Wallet, line: LineWork) -> PreparedLine | Refused:
    try:
        sealed, shaped = seal_line(place, line)
        prepared = PreparedOrder(sealed, wallet.sign(sealed.to_sign().digest), shaped.unlisted)
        amount = line_amount(place, prepared)
    except Refused as refusal:
        return refusal
    if not sealed.sealed.fits_inline:
        return PreparedLine(prepared.id, amount, b"", prepared.unlisted, prepared)
    auth_sig = wallet.sign(prepared.payment(amount).digest)
    return PreparedLine(prepared.id, amount, line_of(prepared, amount, auth_sig), prepared.unlisted)
