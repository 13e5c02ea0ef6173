"""Offers for the lines of one batch: what is offered for each line, and who may read it.

Lines with rates are offered as soon as they are read. From the first line without rates on, lines wait, because the
plan covers all lines without rates. A waiting line is checked before the plan is requested, with rates or without.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import Final, Self

import attrs
from anyio import to_thread

from common.box import PublicKey
from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.core.batch_bids import Bids, ModelDemand, demands
from svc.core.batch_lines import RESPONSES_ENDPOINT, BatchLine
from svc.core.batches import LineWork, Place, seal_line
from svc.core.bids import Bid, Rates
from svc.core.money import Ceiling
from svc.core.order_request import Shaped, shape
from svc.core.orders import PreparedOrder
from svc.core.quote_check import checked_amount, fee_terms
from svc.core.windows import CompletionWindow, expiry, window_seconds
from svc.errors import OrderRefused
from svc.orders import Orders
from svc.records import Model, ModelPlan

LINES_PER_PORTION: Final = 100


@attrs.frozen(slots=True)
class Portion:
    """Lines that are sealed and signed in one go."""

    place: Place
    lines: Sequence[LineWork]


@attrs.define
class Offers:
    """`endpoint` and `custom_ids`, by line, are those of the lines read so far."""

    orders: Orders
    window: CompletionWindow
    bids: Bids
    ceiling: Ceiling
    lines: Iterator[BatchLine]
    endpoint: str = RESPONSES_ENDPOINT
    custom_ids: list[str | None] = attrs.field(factory=list)
    _waiting: list[BatchLine] = attrs.field(factory=list)
    _models: dict[str, Model] = attrs.field(factory=dict)
    _recipients: dict[tuple[int, str | None], PublicKey] = attrs.field(factory=dict)
    _place: Place | None = None

    @classmethod
    async def to(
        cls,
        providers: Sequence[int],
        orders: Orders,
        window: CompletionWindow,
        ceiling: Ceiling,
        lines: Iterator[BatchLine],
    ) -> Self:
        """`providers`: whom lines with rates are designated to in turn. `ceiling` is that of each line."""
        keys = [(provider, await orders.box_key(provider)) for provider in providers]
        bids = Bids([(provider, "0x" + key.raw.hex()) for provider, key in keys])
        return cls(orders, window, bids, ceiling, lines)

    @property
    def fees(self) -> FeeTerms:
        """The charges of all lines, once one is made into work."""
        if self._place is None:
            raise AssertionError("a batch has a line, and the first one is priced")
        return self._place.fees

    async def rated(self) -> AsyncGenerator[Portion, None]:
        """The lines up to the first one without rates, as they are read."""
        while portion := await self._read(LINES_PER_PORTION):
            if any(line.rates is None for line in portion):
                self._waiting = portion
                return
            yield await self._portion(portion)

    async def demands(self) -> list[ModelDemand]:
        """What is to be planned, once all lines are read and those that are no work yet are checked."""
        self._waiting += await self._read(None)
        return demands(await to_thread.run_sync(shaped, self._waiting, self._models))

    async def planned(self, plans: Sequence[ModelPlan]) -> AsyncGenerator[Portion, None]:
        """The lines that waited."""
        self.bids.plan(plans)
        for at in range(0, len(self._waiting), LINES_PER_PORTION):
            yield await self._portion(self._waiting[at : at + LINES_PER_PORTION])

    async def _read(self, most: int | None) -> list[BatchLine]:
        read = await to_thread.run_sync(lambda: list(islice(self.lines, most)))
        for line in read:
            name = line.request.model
            if name not in self._models:
                self._models[name] = await self._account.model(name)
            self.custom_ids.append(line.request.custom_id)
            self.endpoint = line.url
        return read

    async def _portion(self, lines: Sequence[BatchLine]) -> Portion:
        work = []
        for line in lines:
            model = self._models[line.request.model]
            bid = self.bids.bid(model.svc.model_id, line.rates)
            work.append(LineWork(line.request, model, bid, await self._recipient(bid)))
        if self._place is None:
            self._place = await self._priced(work[0])
        return Portion(self._place, work)

    async def _recipient(self, bid: Bid) -> PublicKey:
        known = self._recipients.get((bid.designated, bid.box_key))
        if known is None:
            if bid.box_key is None:
                known = await self._account.escrow_key()
            else:
                known = await self._account.box_key(bid.designated, bid.box_key)
            self._recipients[bid.designated, bid.box_key] = known
        return known

    async def _priced(self, first: LineWork) -> Place:
        """The fee terms of all lines are those of one quote, which is for the first."""
        account = self._account
        market, keys = await account.market(), await account.result_keys()
        now, margin = account.transport.clock.now(), account.settings.settlement_margin
        expires_at = expiry(now, window_seconds(self.window), margin)
        place = Place(market, account.wallet().address, keys[0].public, expires_at, FeeTerms(0, 0), self.ceiling)
        try:
            sealed, shape = seal_line(place, first)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "line 1") from None
        prepared = PreparedOrder(sealed, await account.wallet().sign(sealed.to_sign()), shape.unlisted)
        quote = (await self.orders.quote(prepared)).quote
        checked_amount(prepared, quote, self.ceiling)
        await account.vouching.fees(quote)
        return attrs.evolve(place, fees=fee_terms(quote))

    @property
    def _account(self) -> Account:
        return self.orders.account


def shaped(lines: Sequence[BatchLine], models: dict[str, Model]) -> list[Shaped]:
    """Raises OrderRefused, naming the line that its model cannot take."""
    taken = []
    for line in lines:
        try:
            taken.append(shape(line.request, models[line.request.model]))
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {line.number}") from None
    return taken


@attrs.frozen(slots=True)
class LineOffer:
    """What is offered for lines that carry no rates, so that they wait for room instead of being planned at once:
    `rates`, or without any what is asked at present."""

    rates: Rates | None = None
