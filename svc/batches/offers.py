"""Orders for the lines of a batch: the bid of each line, and the recipient who may read it.

Lines with rates are processed as they are read. From the first line without rates on, lines wait, because the plan
covers all lines without rates. A waiting line is checked before the plan is requested.
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
from svc.core.batches import BatchContext, LineOrder, seal_line
from svc.core.bids import Bid, Rates
from svc.core.money import Ceiling
from svc.core.order_request import PricedRequest, price_request
from svc.core.orders import PreparedOrder
from svc.core.quote_check import checked_amount, fee_terms
from svc.core.windows import CompletionWindow, expiry, window_seconds
from svc.errors import OrderRefused
from svc.orders import Orders
from svc.records import Model, ModelPlan

LINES_PER_PORTION: Final = 100


@attrs.frozen(slots=True)
class Portion:
    """Lines that are sealed and signed together."""

    context: BatchContext
    lines: Sequence[LineOrder]


@attrs.define
class Offers:
    """Orders of the lines read so far, with their `endpoint` and `custom_ids`."""

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
    _context: BatchContext | None = None

    @classmethod
    async def create(
        cls,
        providers: Sequence[int],
        orders: Orders,
        window: CompletionWindow,
        ceiling: Ceiling,
        lines: Iterator[BatchLine],
    ) -> Self:
        """Read the providers' keys, and return the offers.

        `providers`: to which lines with rates are designated in turn. `ceiling` applies to each line.
        """
        keys = [(provider, await orders.box_key(provider)) for provider in providers]
        bids = Bids([(provider, "0x" + key.raw.hex()) for provider, key in keys])
        return cls(orders, window, bids, ceiling, lines)

    @property
    def fees(self) -> FeeTerms:
        """Charges of all lines, known after the first portion."""
        if self._context is None:
            raise AssertionError("the first line has set the charges")
        return self._context.fees

    async def rated_portions(self) -> AsyncGenerator[Portion, None]:
        """Yield the lines before the first line without rates, as they are read."""
        while portion := await self._read_lines(LINES_PER_PORTION):
            if any(line.rates is None for line in portion):
                self._waiting = portion
                return
            yield await self._portion(portion)

    async def demands(self) -> list[ModelDemand]:
        """Read and check the remaining lines, and return what must be planned."""
        self._waiting += await self._read_lines(None)
        return demands(await to_thread.run_sync(price_lines, self._waiting, self._models))

    async def planned_portions(self, plans: Sequence[ModelPlan]) -> AsyncGenerator[Portion, None]:
        """Yield the waiting lines."""
        self.bids.plan(plans)
        for at in range(0, len(self._waiting), LINES_PER_PORTION):
            yield await self._portion(self._waiting[at : at + LINES_PER_PORTION])

    async def _read_lines(self, max_lines: int | None) -> list[BatchLine]:
        lines = await to_thread.run_sync(lambda: list(islice(self.lines, max_lines)))
        for line in lines:
            name = line.request.model
            if name not in self._models:
                self._models[name] = await self._account.model(name)
            self.custom_ids.append(line.request.custom_id)
            self.endpoint = line.url
        return lines

    async def _portion(self, lines: Sequence[BatchLine]) -> Portion:
        work = []
        for line in lines:
            model = self._models[line.request.model]
            bid = self.bids.bid(model.svc.model_id, line.rates)
            work.append(LineOrder(line.request, model, bid, await self._recipient(bid)))
        if self._context is None:
            self._context = await self._price(work[0])
        return Portion(self._context, work)

    async def _recipient(self, bid: Bid) -> PublicKey:
        recipient = self._recipients.get((bid.designated, bid.box_key))
        if recipient is None:
            if bid.box_key is None:
                recipient = await self._account.escrow_key()
            else:
                recipient = await self._account.box_key(bid.designated, bid.box_key)
            self._recipients[bid.designated, bid.box_key] = recipient
        return recipient

    async def _price(self, first_line: LineOrder) -> BatchContext:
        """Price the batch. The quote of its first line gives the charges of all lines."""
        account = self._account
        market, keys = await account.market(), await account.result_keys()
        now, margin = account.transport.clock.now(), account.settings.settlement_margin
        expires_at = expiry(now, window_seconds(self.window), margin)
        context = BatchContext(
            market, account.wallet().address, keys[0].public, expires_at, FeeTerms(0, 0), self.ceiling
        )
        try:
            sealed, priced = seal_line(context, first_line)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "line 1") from None
        prepared = PreparedOrder(sealed, await account.wallet().sign(sealed.to_sign()), priced.unlisted)
        quote = (await self.orders.quote(prepared)).quote
        checked_amount(prepared, quote, self.ceiling)
        await account.vouching.fees(quote)
        return attrs.evolve(context, fees=fee_terms(quote))

    @property
    def _account(self) -> Account:
        return self.orders.account


def price_lines(lines: Sequence[BatchLine], models: dict[str, Model]) -> list[PricedRequest]:
    """Check and price the lines. Raises OrderRefused with the number of a rejected line."""
    priced = []
    for line in lines:
        try:
            priced.append(price_request(line.request, models[line.request.model]))
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {line.number}") from None
    return priced


@attrs.frozen(slots=True)
class LineOffer:
    """Offer for lines without rates, which then wait for capacity instead of being planned at once.

    Without `rates`, the current asks are offered.
    """

    rates: Rates | None = None
