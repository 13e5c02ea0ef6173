"""Lines of a batch made into complete submissions by a key that is at hand.

All of it is computation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, repeat
from typing import Any, Final

import attrs
import msgspec

from common.api import limits
from common.box import PublicKey
from common.envelope import Envelope
from common.pricing.model_input import EMBEDDINGS_ENDPOINT
from common.quotes import Terms as FeeTerms
from common.refusal import Refused
from common.secp256k1 import Wallet
from common.strict_json import parse
from svc.core.known_market import Market
from svc.core.money import OPEN, Bid, Ceiling, Rates, read_rates
from svc.core.orders import OrderRequest, OrderTerms, PreparedOrder, SealedOrder, Shaped, amount_of, seal_order, shape
from svc.core.sealing import read_custom_id
from svc.errors import OrderRefused, OverCeiling, PlanShort
from svc.records import Ask, Model, ModelPlan

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


# Lines of a batch, as its maker writes them.

RESPONSES_ENDPOINT: Final = "/v1/responses"
ENDPOINTS: Final = (RESPONSES_ENDPOINT, EMBEDDINGS_ENDPOINT)
MOST_LINES: Final = limits.BATCH_LINES
_KEYS: Final = frozenset({"custom_id", "method", "url", "body"})  # method: what files for other services carry, too
_TERMS: Final = frozenset({"model", "rate_in", "rate_out", "units_out"})


@attrs.frozen(slots=True)
class BatchLine:
    """`number` counts the lines that are not blank, from 1. `rates` is None where it takes the market's."""

    number: int
    url: str
    request: OrderRequest
    rates: Rates | None


def read_lines(
    texts: Iterable[bytes | str | Mapping[str, Any]], window: str, offered: Mapping[str, Rates] | None = None
) -> Iterator[BatchLine]:
    """Every line, as JSON or as an object, as it is asked for; blank ones are skipped.

    `offered`: by model, the rates of lines that carry none. Raises OrderRefused that names the line.

    A line looks like this:

        {"custom_id": "page 7", "url": "/v1/responses", "body": {"model": "demo/text-small", "input": "…"}}

    `body.model` is required; `body.rate_in`, `body.rate_out` and `body.units_out` set order terms; the rest of `body`
    is the model's input. `url` is `/v1/responses` unless given, and the same for the whole batch. A `custom_id` travels
    sealed.
    """
    first: BatchLine | None = None
    seen: set[str] = set()
    written = (text for text in texts if isinstance(text, Mapping) or text.strip())
    for number, text in enumerate(written, start=1):
        try:
            if number > MOST_LINES:
                raise Refused(f"a batch has at most {MOST_LINES} lines")
            line = _line(number, text if isinstance(text, Mapping) else _parsed(text), window)
            if line.rates is None and offered is not None and line.request.model in offered:
                line = _offered(line, offered[line.request.model])
            custom_id = line.request.custom_id
            if custom_id in seen:
                raise Refused(f"custom_id {custom_id!r} is that of an earlier line", "custom_id")
            if first is not None and line.url != first.url:
                raise Refused(f"url must be {first.url}, as on the first line: a batch has one", "url")
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {number}") from None
        first = first or line
        if custom_id is not None:
            seen.add(custom_id)
        yield line
    if first is None:
        raise OrderRefused("the batch has no lines", code="empty_file")


def _parsed(text: bytes | str) -> object:
    return parse((text.encode() if isinstance(text, str) else text).strip())


def _line(number: int, value: object, window: str) -> BatchLine:
    if not isinstance(value, Mapping):
        raise Refused("a line must be a JSON object")
    for key in value:
        if key not in _KEYS:
            raise Refused(f"{key!r} is not a field of a line; the model's input belongs into body", str(key))
    url = value.get("url", RESPONSES_ENDPOINT)
    if url not in ENDPOINTS:
        raise Refused(f"url must be one of {', '.join(ENDPOINTS)}", "url")
    body = value.get("body")
    if not isinstance(body, Mapping):
        raise Refused("body must be an object", "body")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("body.model is required", "body.model")
    request = OrderRequest(
        model=model,
        input={name: given for name, given in body.items() if name not in _TERMS},
        window=window,
        rate_in=body.get("rate_in"),
        rate_out=body.get("rate_out"),
        units_out=body.get("units_out"),
        endpoint=url,
        custom_id=read_custom_id(value.get("custom_id")),
    )
    return BatchLine(number, url, request, read_rates(request.rate_in, request.rate_out))


def _offered(line: BatchLine, rates: Rates) -> BatchLine:
    request = attrs.evolve(line.request, rate_in=rates.rate_in, rate_out=rates.rate_out)
    return attrs.evolve(line, request=request, rates=rates)


# Providers of a batch's lines.
#
# neither rate         as the network's plan for the line's model has it: its providers, at their asks, in file order
# a rate, providers    the given providers in turn
# a rate, none given   an open order, sealed to the escrow

MOST_MODELS: Final = 16  # of one plan request


@attrs.frozen(slots=True)
class ModelDemand:
    """Lines of one model that are to be planned; the units are totals over them."""

    name: str
    model_id: int
    lines: int
    units_in: int
    units_out: int


def demands(lines: Sequence[Shaped]) -> list[ModelDemand]:
    """Per model, in the order of first appearance; lines that carry rates need no plan."""
    totals: dict[str, ModelDemand] = {}
    for line in lines:
        if line.rates is None:
            name = line.model.id
            before = totals.get(name, ModelDemand(name, line.model.svc.model_id, 0, 0, 0))
            totals[name] = attrs.evolve(
                before,
                lines=before.lines + 1,
                units_in=before.units_in + line.units.units_in,
                units_out=before.units_out + line.units.units_out,
            )
    return list(totals.values())


def plan_bodies(wanted: Sequence[ModelDemand], completion_window: str) -> Iterator[dict[str, Any]]:
    """The plan requests: one for every sixteen models."""
    for at in range(0, len(wanted), MOST_MODELS):
        some = wanted[at : at + MOST_MODELS]
        models = [
            {"model_id": one.model_id, "lines": one.lines, "units_in": one.units_in, "units_out": one.units_out}
            for one in some
        ]
        yield {"completion_window": completion_window, "models": models}


def market_rates(asks: Sequence[Ask], *, everyone: bool) -> Rates:
    """Rates at which lines are offered at present prices: those of the cheapest ask, by the sum of its two rates; or
    with `everyone` the highest of each, so that all who ask may claim."""
    if everyone:
        return Rates(max(ask.rate_in for ask in asks), max(ask.rate_out for ask in asks))
    cheapest = min(asks, key=lambda ask: (ask.rate_in + ask.rate_out, ask.provider_id))
    return Rates(cheapest.rate_in, cheapest.rate_out)


def check_plan(wanted: Sequence[ModelDemand], plans: Sequence[ModelPlan]) -> None:
    """Raises PlanShort when the network would not take every line now."""
    allocated = {plan.model_id: sum(share.lines for share in plan.allocation) for plan in plans}
    for one in wanted:
        if allocated.get(one.model_id, 0) < one.lines:
            raise PlanShort(one.name, allocated.get(one.model_id, 0), one.lines)


class Bids:
    """A bid for each line, asked for in the order of the file.

    `providers`: id and box key of those that lines with rates are designated to in turn. Equal bids are one object:
    what is sent on with its lines is then sent once.
    """

    def __init__(self, providers: Sequence[tuple[int, str]]) -> None:
        self._turns = cycle(providers or [(OPEN, None)])
        self._planned: dict[int, Iterator[Bid]] = {}
        self._known: dict[tuple[int, int, int], Bid] = {}

    def plan(self, plans: Sequence[ModelPlan]) -> None:
        """Lines without rates go where these have them."""
        self._planned = {plan.model_id: _planned(plan) for plan in plans}

    def bid(self, model_id: int, rates: Rates | None) -> Bid:
        if rates is None:
            return next(self._planned[model_id])
        provider, box_key = next(self._turns)
        terms = (rates.rate_in, rates.rate_out, provider)
        known = self._known.get(terms)
        if known is None:
            known = self._known[terms] = Bid(rates, provider, box_key)
        return known


def _planned(plan: ModelPlan) -> Iterator[Bid]:
    for share in plan.allocation:
        yield from repeat(Bid(Rates(share.rate_in, share.rate_out), share.provider_id, share.box_key), share.lines)
