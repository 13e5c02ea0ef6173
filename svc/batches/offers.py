"""Build the orders of a batch's jobs, with their recipients, shared charges and bundle limits.

No plan is requested before the whole file is checked. Nothing is signed before the whole file is planned.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import attrs

from common.box import PublicKey
from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.core.batch_bids import JobLines
from svc.core.batch_lines import BatchLine
from svc.core.batches import BatchContext, JobOrder, seal_job, unlisted_parameters
from svc.core.bids import Bid, Rates
from svc.core.bundles import UNBUNDLED_LIMITS, BundleLimits, bundle_limits_for
from svc.core.money import Ceiling
from svc.core.order_request import PricedRequest, price_request
from svc.core.orders import PreparedOrder
from svc.core.quote_check import check_amount, fee_terms
from svc.core.windows import CompletionWindow, expiry_time, window_seconds
from svc.errors import OrderRefused
from svc.market import Market
from svc.orders import Orders
from svc.records import Ask, Model

MIN_LINES_PER_GROUP: Final = 100


@attrs.frozen(slots=True)
class OrderGroup:
    """Orders of jobs that are sealed and signed together."""

    context: BatchContext
    orders: Sequence[JobOrder]


@attrs.define
class JobOrderBuilder:
    """Builds the orders of a batch's jobs. `ceiling` applies to each line."""

    orders: Orders
    window: CompletionWindow
    ceiling: Ceiling
    _recipients: dict[tuple[int, str | None], PublicKey] = attrs.field(factory=dict)

    async def order_groups(self, jobs: Sequence[JobLines]) -> AsyncGenerator[OrderGroup, None]:
        """Yield the jobs' orders in groups of at least MIN_LINES_PER_GROUP lines. The last group may be smaller."""
        context: BatchContext | None = None
        orders: list[JobOrder] = []
        lines = 0
        for job in jobs:
            orders.append(JobOrder(job, await self._find_recipient(job.bid)))
            lines += len(job.lines)
            if context is None:
                context = await self._build_context(orders[0])
            if lines >= MIN_LINES_PER_GROUP or job is jobs[-1]:
                yield OrderGroup(context, orders)
                orders, lines = [], 0

    async def _find_recipient(self, bid: Bid) -> PublicKey:
        recipient = self._recipients.get((bid.designated, bid.box_key))
        if recipient is None:
            if bid.box_key is None:
                recipient = await self._account.escrow_key()
            else:
                recipient = await self._account.verify_box_key(bid.designated, bid.box_key)
            self._recipients[bid.designated, bid.box_key] = recipient
        return recipient

    async def _build_context(self, first: JobOrder) -> BatchContext:
        """Return the context that all jobs share. Its charges come from a quote for the first line."""
        account = self._account
        market, keys = await account.market(), await account.result_keys()
        now, margin = account.transport.clock.now(), account.settings.settlement_margin
        expires_at = expiry_time(now, window_seconds(self.window), margin)
        context = BatchContext(
            market, account.wallet().address, keys[0].public, expires_at, FeeTerms(0, 0), self.ceiling
        )
        first_line = attrs.evolve(first, job_lines=attrs.evolve(first.job_lines, lines=first.job_lines.lines[:1]))
        try:
            sealed = seal_job(context, first_line)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "line 1") from None
        prepared = PreparedOrder(
            sealed, await account.wallet().sign(sealed.signing_request()), unlisted_parameters(first_line)
        )
        quote = (await self.orders.quote(prepared)).quote
        check_amount(prepared, quote, self.ceiling)
        await account.market_verifier.check_fees(quote)
        return attrs.evolve(context, fee_terms=fee_terms(quote))

    @property
    def _account(self) -> Account:
        return self.orders.account


@attrs.frozen
class ProviderBundleLimits:
    """Bundle limits of each provider, from the current asks for one window."""

    asks: Mapping[tuple[int, int], Ask]  # by provider and model id
    max_items: int | None

    @classmethod
    async def read(
        cls, account: Account, models: Sequence[Model], window: CompletionWindow, max_items: int | None
    ) -> "ProviderBundleLimits":
        """Read the current asks for these models. If `max_items` is 1, no bundles are made, so no asks are read."""
        asks: dict[tuple[int, int], Ask] = {}
        for model in models if max_items != 1 else ():
            for ask in await Market(account).asks(model=model.svc.model_id, limit=None):
                if ask.sla == window_seconds(window):
                    asks[ask.provider_id, ask.model_id] = ask
        return cls(asks, max_items)

    def find_limits(self, provider_id: int, model_id: int) -> BundleLimits:
        ask = self.asks.get((provider_id, model_id))
        return UNBUNDLED_LIMITS if ask is None else bundle_limits_for(ask, self.max_items)


def price_lines(lines: Sequence[BatchLine], models: Mapping[str, Model]) -> list[PricedRequest]:
    """Check and price the lines. Raises OrderRefused, which names the number of the first rejected line."""
    priced = []
    for line in lines:
        try:
            priced.append(price_request(line.request, models[line.request.model]))
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {line.number}") from None
    return priced


@attrs.frozen(slots=True)
class LineOffer:
    """Offer for the lines without rates, at fixed `rates`, or at the current asks if `rates` is None.

    Offered lines wait for a provider with capacity. They are not part of the network's plan.
    """

    rates: Rates | None = None
