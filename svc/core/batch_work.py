"""Lines of a batch made into complete submissions by a key that is at hand.

It is all computation, in portions that other processes can take: what a portion needs travels with it.
"""

from collections.abc import Sequence

import attrs
import msgspec

from common.box import PublicKey
from common.envelope import Envelope
from common.quotes import Terms as FeeTerms
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.core.deployment import Market
from svc.core.orders import PreparedOrder, Terms, seal_order
from svc.core.quoting import amount_of

_encode = msgspec.json.Encoder().encode


@attrs.frozen(slots=True)
class LineWork:
    """One line: its terms, its input, and who may read it."""

    terms: Terms
    input: dict[str, object]
    custom_id: str | None
    recipient: PublicKey


@attrs.frozen(slots=True)
class Place:
    """What all lines of a batch share."""

    market: Market
    owner: bytes
    result_key: PublicKey
    fees: FeeTerms


@attrs.frozen(slots=True)
class PreparedLine:
    """A line that can be posted: `text` is its JSON. One whose container is too large for it is still to be uploaded
    and paid for, and is `oversized` instead."""

    job_id: str
    amount: int
    text: bytes = attrs.field(repr=False)
    oversized: PreparedOrder | None = None


def prepare_lines(place: Place, wallet: Wallet, portion: Sequence[LineWork]) -> list[PreparedLine | Refused]:
    """Each line, or why it cannot be sealed."""
    return [_prepared(place, wallet, line) for line in portion]


def envelope_of(place: Place, line: LineWork) -> Envelope:
    return Envelope(place.owner, line.terms.model, line.input, place.result_key, line.custom_id)


def line_of(prepared: PreparedOrder, amount: int, auth_sig: bytes, container_cid: str | None = None) -> bytes:
    return _encode(prepared.submission(amount, auth_sig, container_cid))


def _prepared(place: Place, wallet: Wallet, line: LineWork) -> PreparedLine | Refused:
    try:
        sealed = seal_order(place.market, line.recipient, envelope_of(place, line), line.terms)
        prepared = PreparedOrder(sealed, wallet.sign(sealed.to_sign().digest))
        amount = amount_of(prepared, place.fees)
    except Refused as refusal:
        return refusal
    if not sealed.sealed.fits_inline:
        return PreparedLine(prepared.id, amount, b"", prepared)
    return PreparedLine(prepared.id, amount, line_of(prepared, amount, wallet.sign(prepared.payment(amount).digest)))
