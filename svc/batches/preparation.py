"""From lines to a batch file of complete submissions: planned, sealed, signed and paid for, line by line."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Final, Self

import attrs
from anyio import to_thread

from common.box import PublicKey
from common.quotes import Terms as FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.core.batches import (
    RESPONSES_ENDPOINT,
    BatchLine,
    Bids,
    LineWork,
    ModelDemand,
    Place,
    PreparedLine,
    check_plan,
    demands,
    line_amount,
    line_of,
    market_rates,
    plan_bodies,
    prepare_lines,
    read_lines,
    seal_line,
)
from svc.core.money import Bid, Ceiling, Rates
from svc.core.orders import (
    CompletionWindow,
    PreparedOrder,
    Shaped,
    checked_amount,
    expiry,
    fee_terms,
    shape,
    window_seconds,
)
from svc.errors import NoProvider, OrderRefused
from svc.orders import Market, Orders
from svc.records import Model, ModelPlan, Record
from svc.signers import LocalSigner
from svc.wire.transport import read

LINES_PER_PORTION: Final = 100

Outcome = PreparedLine | Refused
Progress = Callable[[int], object]


@attrs.frozen(slots=True)
class Portion:
    """Lines that are sealed and signed in one go."""

    place: Place
    lines: Sequence[LineWork]


# The lines of one batch made into work: what is offered for each, and who may read it.
#
# Lines that carry rates are work as soon as they are read. From the first one without on they wait, for the plan is
# over all of those; and what waits is checked, rates or not, before the plan is asked for.


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


Texts = Iterable[bytes | str | Mapping[str, Any]]

_PAYMENT_REQUIRED: Final = frozenset({402})


class Plan(Record, frozen=True):
    plan: tuple[ModelPlan, ...]


@attrs.frozen(slots=True)
class PreparedBatch:
    """A batch file that can be posted. Keep `custom_ids` (by job id): they travel sealed, and no answer tells them.

    `amount` is what all lines come to at most, in base units; it is collected line by line as they are claimed. `fees`:
    the charges that they are priced with.
    """

    endpoint: str
    completion_window: CompletionWindow
    content: bytes = attrs.field(repr=False)
    job_ids: tuple[str, ...] = attrs.field(repr=False)
    custom_ids: dict[str, str] = attrs.field(repr=False)
    amount: int
    fees: FeeTerms
    unlisted: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        return len(self.job_ids)


@attrs.frozen
class Preparation:
    account: Account
    orders: Orders

    async def plan(
        self, texts: Texts, window: CompletionWindow, offer: "LineOffer | None" = None
    ) -> tuple[ModelPlan, ...]:
        """Who would take the lines without rates now. Nothing is reserved."""
        texts = list(texts)
        offered = await self.offered(texts, window, offer, ())
        lines = await to_thread.run_sync(list, read_lines(texts, window, offered))
        models = {name: await self.account.model(name) for name in dict.fromkeys(line.request.model for line in lines)}
        return await self._planned(demands(await to_thread.run_sync(shaped, lines, models)), window)

    async def prepare(
        self,
        texts: Texts,
        window: CompletionWindow,
        providers: Sequence[int],
        *,
        offer: "LineOffer | None",
        max_amount: int | None,
        max_line_amount: int | None,
        progress: Progress | None,
    ) -> PreparedBatch:
        """Raises PlanShort, OrderRefused (naming the line) or QuoteRefused before anything is sent but questions."""
        in_all = await self.account.batch_ceiling(max_amount)
        # What no line alone may come to is not signed for; what all of them may not is never sent.
        each = min(in_all, await self.account.line_ceiling(max_line_amount), key=lambda ceiling: ceiling.most)
        texts, signer = list(texts), self.account.wallet()
        offered = await self.offered(texts, window, offer, providers)
        offers = await Offers.to(providers, self.orders, window, each, read_lines(texts, window, offered))
        lines: list[PreparedLine] = []
        if isinstance(signer, LocalSigner):  # a remote signer is not asked before the whole file is checked
            await self._make(offers.rated(), lines, progress)
        wanted = await offers.demands()
        plans = await self._planned(wanted, window)
        check_plan(wanted, plans)
        await self._make(offers.planned(plans), lines, progress)
        amount = sum(line.amount for line in lines)
        in_all.check(amount, "the batch")
        contents = [
            line.text if line.oversized is None else await self._uploaded(line.oversized, line) for line in lines
        ]
        named = [(line.job_id, custom_id) for line, custom_id in zip(lines, offers.custom_ids, strict=True)]
        return PreparedBatch(
            endpoint=offers.endpoint,
            completion_window=window,
            content=b"\n".join((*contents, b"")),
            job_ids=tuple(line.job_id for line in lines),
            custom_ids={job_id: custom_id for job_id, custom_id in named if custom_id is not None},
            amount=amount,
            fees=offers.fees,
            unlisted=tuple(dict.fromkeys(name for line in lines for name in line.unlisted)),
        )

    async def offered(
        self,
        texts: Sequence[bytes | str | Mapping[str, Any]],
        window: CompletionWindow,
        offer: "LineOffer | None",
        providers: Sequence[int],
    ) -> dict[str, Rates]:
        """By model, what is offered for lines that carry no rates: the same for all, or what is asked at present.

        Raises NoProvider for a model that nobody asks a price for in this window.
        """
        if offer is None:
            return {}
        lines = await to_thread.run_sync(list, read_lines(texts, window))
        names = list(dict.fromkeys(line.request.model for line in lines if line.rates is None))
        if offer.rates is not None:
            return dict.fromkeys(names, offer.rates)
        offered = {}
        for name in names:
            model, seconds = await self.account.model(name), window_seconds(window)
            asks = await Market(self.account).asks(model=model.svc.model_id, limit=None)
            suitable = [ask for ask in asks if ask.sla == seconds and (not providers or ask.provider_id in providers)]
            if not suitable:
                whom = f"none of the providers {', '.join(map(str, providers))}" if providers else "nobody"
                raise NoProvider(f"{whom} asks a price for {name} in a window of {window}")
            offered[name] = market_rates(suitable, everyone=bool(providers))
        return offered

    async def _planned(self, wanted: Sequence[ModelDemand], window: CompletionWindow) -> tuple[ModelPlan, ...]:
        plans: tuple[ModelPlan, ...] = ()
        for body in plan_bodies(wanted, window):
            plans += await self._ask_plan(body)
        return plans

    async def _ask_plan(self, body: dict[str, Any]) -> tuple[ModelPlan, ...]:
        async def ask(headers: dict[str, str]) -> tuple[ModelPlan, ...]:
            answer = await self.account.transport.send(
                "POST", "/v1/batches", json=body, headers=headers, expected=_PAYMENT_REQUIRED
            )
            return read(answer, Plan).plan

        return await self.account.authorised(ask)

    async def _make(
        self, portions: AsyncGenerator[Portion, None], made: list[PreparedLine], progress: Progress | None
    ) -> None:
        """Append the submission of each line to `made`. Raises OrderRefused for the first line that cannot be made."""
        signer = self.account.wallet()
        async with aclosing(portions):
            async for portion in portions:
                # One thread: each line holds the GIL for about half of its time, so a second thread gains little.
                if isinstance(signer, LocalSigner):
                    outcomes = await to_thread.run_sync(prepare_lines, portion.place, signer.wallet, portion.lines)
                else:
                    outcomes = [await self._signed_remotely(portion.place, line) for line in portion.lines]
                for outcome in outcomes:
                    if isinstance(outcome, Refused):
                        raise OrderRefused.because(outcome, f"line {len(made) + 1}")
                    made.append(outcome)
                if progress is not None:
                    progress(len(made))

    async def _signed_remotely(self, place: Place, line: LineWork) -> Outcome:
        signer = self.account.wallet()
        try:
            sealed, shaped = await to_thread.run_sync(seal_line, place, line)
            prepared = PreparedOrder(sealed, await signer.sign(sealed.to_sign()), shaped.unlisted)
            amount = line_amount(place, prepared)
        except Refused as refusal:
            return refusal
        if not sealed.sealed.fits_inline:
            return PreparedLine(prepared.id, amount, b"", prepared.unlisted, prepared)
        text = line_of(prepared, amount, await signer.sign(prepared.payment(amount)))
        return PreparedLine(prepared.id, amount, text, prepared.unlisted)

    async def _uploaded(self, prepared: PreparedOrder, line: PreparedLine) -> bytes:
        """Last of all: an upload that no batch refers to yet is kept for five minutes."""
        container = prepared.sealed_order.sealed.container
        file = await self.orders.files.upload(container, "input", filename="container")
        signature = await self.account.wallet().sign(prepared.payment(line.amount))
        return line_of(prepared, line.amount, signature, file.svc.cid)
