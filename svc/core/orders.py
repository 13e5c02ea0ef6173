"""An order from its terms to the body of a submission."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from common import quotes
from common.api import limits
from common.box import PublicKey
from common.envelope import Envelope
from common.messages.jobs import Cancel, Order
from common.messages.payments import job_payment
from common.pricing.model_input import EMBEDDINGS_ENDPOINT, IMAGES_ENDPOINT, TEXT_ENDPOINTS, Modality, modality_of
from common.pricing.units import Units, units_of
from common.quotes import Terms, job_id
from common.refusal import Refused
from common.scalars import base64_of, hex_of
from svc.core.known_market import Market
from svc.core.money import Ceiling, Rate, Rates, read_rates
from svc.core.params_schema import check_parameters
from svc.core.sealing import ModelInput, Sealed, model_input, read_custom_id, seal_envelope
from svc.core.typed_data import SigningRequest, request
from svc.errors import QuoteRefused
from svc.records import Authorization, Model, Quote, Quoted, TokenDomain


@attrs.frozen(slots=True)
class OrderTerms:
    """What is asked for and offered. `designated` is 0 for an open order."""

    model: str
    model_id: int
    modality: Modality
    sla_secs: int
    units: Units
    rates: Rates
    designated: int
    expires_at: int


@attrs.frozen(slots=True)
class SealedOrder:
    """An order that commits to its container and is still to be signed."""

    market: Market = attrs.field(repr=False)
    terms: OrderTerms
    owner: bytes
    order: Order = attrs.field(repr=False)
    job_id: bytes
    sealed: Sealed = attrs.field(repr=False)

    def to_sign(self) -> SigningRequest:
        return request("order", self.market.domains.jobs, self.order)


@attrs.frozen(slots=True)
class PreparedOrder:
    """A signed order with its sealed container: what `quote` and `submit` take. `id` is the job's, known beforehand.

    `unlisted`: parameters that the model's schema does not name.
    """

    sealed_order: SealedOrder = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    unlisted: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return hex_of(self.sealed_order.job_id)

    @property
    def terms(self) -> OrderTerms:
        return self.sealed_order.terms

    def body(self) -> dict[str, Any]:
        """The body that asks for a quote."""
        sealed = self.sealed_order
        order = sealed.order
        return {
            "c": hex_of(order.c),
            "model_id": order.model_id,
            "sla_secs": order.sla_secs,
            "rate_in": str(order.rate_in),
            "rate_out": str(order.rate_out),
            "units_in": order.units_in,
            "units_out": order.units_out,
            "designated": order.designated,
            "expires_at": str(order.expires_at),
            "owner": hex_of(sealed.owner),
            "job_id": hex_of(sealed.job_id),
            "signature": hex_of(self.signature),
        }

    def payment(self, amount: int) -> SigningRequest:
        """The one authorisation that pays for this job, to be signed by its owner."""
        sealed = self.sealed_order
        market = sealed.market
        authorization = job_payment(sealed.owner, market.job_registry, amount, sealed.order.expires_at, sealed.job_id)
        return request("payment", market.domains.token, authorization)

    def submission(self, amount: int, auth_sig: bytes, container_cid: str | None = None) -> dict[str, Any]:
        """The body that is posted: the container inside, or by the content id of its upload."""
        body = self.body() | {"amount": str(amount), "auth_sig": hex_of(auth_sig)}
        if container_cid is not None:
            return body | {"container_cid": container_cid}
        return body | {"container": base64_of(self.sealed_order.sealed.container)}


def seal_order(market: Market, recipient: PublicKey, envelope: Envelope, terms: OrderTerms) -> SealedOrder:
    sealed = seal_envelope(market, recipient, envelope)
    order = Order(
        c=sealed.c,
        model_id=terms.model_id,
        sla_secs=terms.sla_secs,
        rate_in=terms.rates.rate_in,
        rate_out=terms.rates.rate_out,
        units_in=terms.units.units_in,
        units_out=terms.units.units_out,
        designated=terms.designated,
        expires_at=terms.expires_at,
    )
    return SealedOrder(market, terms, envelope.owner, order, job_id(envelope.owner, sealed.c), sealed)


def cancellation(market: Market, job: bytes, issued_at: int) -> SigningRequest:
    return request("cancellation", market.domains.jobs, Cancel(job, issued_at))


# Completion window of a job, and the expiry of its order.
#
# tiers       async = 1h = 3600 s, batch = 24h = 86400 s
# windows     <n>h, <n>m, <n>s as written; any other form is 3600 s
# expiry      window + settlement margin, at most 86400 s from signing

DEFAULT_WINDOW: Final = "batch"
WINDOW_FORMS: Final = "1h (async), 24h (batch), <n>h, <n>m or <n>s"
LONGEST_ORDER_LIFE: Final = limits.ORDER_LIFE
_TIERS: Final = {"async": 3_600, "batch": 86_400}
USUAL_WINDOWS: Final = frozenset(_TIERS.values())
_OTHERWISE: Final = 3_600
_WINDOW: Final = re.compile(r"([0-9]{1,10})([hms])", re.ASCII)
_SECONDS: Final = {"h": 3_600, "m": 60, "s": 1}

CompletionWindow = Literal["1h", "24h"]
_COMPLETION: Final[dict[str, CompletionWindow]] = {"1h": "1h", "async": "1h", "24h": "24h", "batch": "24h"}


def window_seconds(window: str) -> int:
    """The SLA that an order signs. Whether it is allowed is the network's to say.

    >>> [window_seconds(window) for window in ("async", "batch", "90m", "300s", "soon")]
    [3600, 86400, 5400, 300, 3600]
    """
    if window in _TIERS:
        return _TIERS[window]
    found = _WINDOW.fullmatch(window)
    if found is None:
        return _OTHERWISE
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds >> 32:
        raise Refused(f"a window of {window} does not fit an order", "window")
    return seconds


def is_window(window: str) -> bool:
    """True for a window that is signed as written; every other text is signed as an hour.

    >>> [is_window(window) for window in ("batch", "90m", "7d")]
    [True, True, False]
    """
    return window in _TIERS or _WINDOW.fullmatch(window) is not None


def window_words(seconds: int) -> str:
    """
    >>> [window_words(seconds) for seconds in (86_400, 3_600, 7_200, 300, 45)]
    ['24h', '1h', '2h', '5m', '45s']
    """
    for length, unit in ((3_600, "h"), (60, "m")):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


@attrs.frozen(slots=True)
class Windows:
    """Windows that orders may have, in seconds. `certain`: the network takes no others; else these are those that
    somebody asks a price for."""

    seconds: tuple[int, ...]
    certain: bool

    @property
    def words(self) -> str:
        return ", ".join(window_words(each) for each in self.seconds) or "none"

    def check(self, window: str, seconds: int) -> None:
        """Raises Refused (`window_not_allowed`) for one that the network does not take."""
        if self.certain and seconds not in self.seconds:
            raise Refused(f"the network takes no window of {window}; it takes {self.words}", "window", WINDOW_REFUSED)


WINDOW_REFUSED: Final = "window_not_allowed"


def expiry(now: int, sla_secs: int, margin: int) -> int:
    """Until when the order can be claimed."""
    return now + min(sla_secs + margin, LONGEST_ORDER_LIFE)


def completion_window(window: str) -> CompletionWindow:
    """A batch has one of two windows: `1h` (also `async`) or `24h` (also `batch`)."""
    if window not in _COMPLETION:
        raise Refused("a batch's window is 1h (async) or 24h (batch)", "completion_window")
    return _COMPLETION[window]


# Order request checked against the model: its input, shape and units.


@attrs.frozen(slots=True)
class OrderRequest:
    """`endpoint` matters for embeddings alone (`/v1/embeddings`); without it, what the model publishes."""

    model: str
    input: ModelInput
    window: str = DEFAULT_WINDOW
    provider: int | None = None
    rate_in: Rate | None = None
    rate_out: Rate | None = None
    units_out: int | None = None
    endpoint: str | None = None
    custom_id: str | None = None


@attrs.frozen(slots=True)
class Shaped:
    """A request that the model can take, as far as can be told here. `rates` is None for the market's."""

    model: Model
    input: dict[str, object]
    modality: Modality
    units: Units
    sla_secs: int
    rates: Rates | None
    provider: int | None
    custom_id: str | None
    unlisted: tuple[str, ...]


def shape(request: OrderRequest, model: Model) -> Shaped:
    """Check a request that is to be bought, and price it. Raises Refused, naming the field at fault."""
    shaped = shape_probe(request, model)
    _require_served(request, shaped)
    return shaped


def shape_probe(request: OrderRequest, model: Model) -> Shaped:
    """Price a request that only asks for candidates: its input may still be incomplete. Raises Refused."""
    if not model.svc.enabled:
        raise Refused(f"{model.id} takes no new orders", "model")
    if request.provider is not None and not 0 < request.provider < 2**32:
        raise Refused("provider must be a provider's id", "provider")
    given = model_input(request.input)
    unlisted = check_parameters(_schema(model), given)
    modality = modality_of(request.endpoint or model.svc.endpoint, given)
    return Shaped(
        model=model,
        input=given,
        modality=modality,
        units=units_of(modality, given, units_out=request.units_out),
        sla_secs=window_seconds(request.window),
        rates=read_rates(request.rate_in, request.rate_out),
        provider=request.provider,
        custom_id=read_custom_id(request.custom_id),
        unlisted=unlisted,
    )


def _require_served(request: OrderRequest, shaped: Shaped) -> None:
    """Raise Refused if the route that the model publishes cannot serve this request."""
    model, modality, unlisted = shaped.model, shaped.modality, shaped.unlisted
    serves = model.svc.endpoint
    if serves is None:
        return
    if request.endpoint == EMBEDDINGS_ENDPOINT != serves:
        raise Refused(f"{model.id} makes no embeddings: it serves {serves}", "endpoint")
    if serves == EMBEDDINGS_ENDPOINT and "input" not in shaped.input:
        raise Refused(f"{model.id} makes embeddings of its input: name the texts as input", "input")
    if serves == IMAGES_ENDPOINT and modality != "image" and request.units_out is None:
        example = '{"prompt": "a cat", "num_images": 1}'
        raise Refused(f"{model.id} makes images: name num_images, width or resolution, as in {example}", "input")
    if serves in TEXT_ENDPOINTS and modality in ("image", "video") and unlisted:
        raise Refused(f"{model.id} answers with text and makes no {modality}: leave out {', '.join(unlisted)}", "input")


def _schema(model: Model) -> Mapping[str, object] | None:
    return model.svc.params_schema


def probe_body(shaped: Shaped) -> dict[str, object]:
    """The unsigned question to the market."""
    body: dict[str, object] = {
        "model_id": shaped.model.svc.model_id,
        "sla_secs": shaped.sla_secs,
        "units_in": shaped.units.units_in,
        "units_out": shaped.units.units_out,
    }
    return body if shaped.provider is None else body | {"designated": shaped.provider}


# Check of a quote. A payment is signed only for an amount that was computed here.

MOST_ATTEMPTS: Final = 3  # submissions of one order, each with a payment for a newer quote


def fee_terms(quote: Quote) -> Terms:
    """The charges that the quote was made under; every order of a batch is priced with those of one quote."""
    return Terms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee)


def amount_of(prepared: PreparedOrder, terms: Terms) -> int:
    order = prepared.sealed_order.order
    return quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms).amount


def computed_quote(prepared: PreparedOrder, terms: Terms) -> Quoted:
    """The quote that an order comes to under charges that are known, so that nobody need be asked for it. Where they
    have changed, the answer to the post holds the new one."""
    sealed = prepared.sealed_order
    order, domain = sealed.order, sealed.market.domains.token.domain
    quote = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, terms)
    contract = domain.verifying_contract
    token = TokenDomain(domain.name, domain.version, domain.chain_id, "" if contract is None else hex_of(contract))
    authorization = Authorization(
        token, hex_of(sealed.market.job_registry), quote.amount, 0, order.expires_at + 1, prepared.id
    )
    return Quoted(Quote(quote.cap, terms.fee_bps, quote.fee, quote.gas_fee, quote.amount, authorization), ())


def checked_amount(prepared: PreparedOrder, quote: Quote, ceiling: Ceiling) -> int:
    """The amount to authorise. Raises QuoteRefused when the quote says anything else, OverCeiling above the ceiling."""
    sealed, authorization = prepared.sealed_order, quote.authorization
    order, domain = sealed.order, sealed.market.domains.token.domain
    try:
        expected = quotes.quote(order.rate_in, order.rate_out, order.units_in, order.units_out, fee_terms(quote))
    except ValueError as error:
        raise QuoteRefused(f"the quote's charges are out of range: {error}", code="quote_mismatch") from None
    contract = domain.verifying_contract
    said = (
        (quote.cap, quote.fee, quote.gas_fee, quote.amount),
        (authorization.value, authorization.valid_after, authorization.valid_before),
        (authorization.to.lower(), authorization.nonce.lower()),
        (authorization.domain.name, authorization.domain.version, authorization.domain.chainId),
        authorization.domain.verifyingContract.lower(),
    )
    ours = (
        (expected.cap, expected.fee, expected.gas_fee, expected.amount),
        (expected.amount, 0, order.expires_at + 1),
        (hex_of(sealed.market.job_registry), prepared.id),
        (domain.name, domain.version, domain.chain_id),
        hex_of(contract) if contract is not None else None,
    )
    if said != ours:
        raise QuoteRefused("the quote is not what this order comes to", code="quote_mismatch")
    ceiling.check(expected.amount, "the order")
    return expected.amount
