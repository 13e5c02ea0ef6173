"""From lines to a batch file of complete submissions: planned, sealed, signed and paid for, line by line."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
from anyio import to_thread
from anyio.abc import Process

from common.box import PublicKey
from common.quotes import Terms as FeeTerms
from common.refusal import Refused
from svc import batch_pool
from svc.account import Account
from svc.batch_pool import Outcome, Progress
from svc.core.batch_lines import BatchInput, BatchLine
from svc.core.batch_plan import ModelDemand, bids, check_plan, demands, plan_bodies
from svc.core.batch_work import LineWork, Place, PreparedLine, line_of, seal_line
from svc.core.bids import Bid, Rates, read_rates
from svc.core.order_request import Shaped, shape
from svc.core.orders import PreparedOrder
from svc.core.quoting import amount_of, checked_amount, fee_terms
from svc.core.windows import CompletionWindow, expiry, window_seconds
from svc.errors import OrderRefused, QuoteRefused
from svc.orders import Orders, read_box_key
from svc.records import Model, ModelPlan, Record
from svc.signers import LocalSigner
from svc.wire.transport import read

_PAYMENT_REQUIRED: Final = frozenset({402})


class Plan(Record, frozen=True):
    plan: tuple[ModelPlan, ...]


@attrs.frozen(slots=True)
class PreparedBatch:
    """A batch file that can be posted. Keep `custom_ids` (by job id): they travel sealed, and no answer tells them.

    `amount` is what all lines come to at most, in base units; it is collected line by line as they are claimed.
    """

    endpoint: str
    completion_window: CompletionWindow
    content: bytes = attrs.field(repr=False)
    job_ids: tuple[str, ...] = attrs.field(repr=False)
    custom_ids: dict[str, str] = attrs.field(repr=False)
    amount: int
    unlisted: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        return len(self.job_ids)


@attrs.frozen
class Preparation:
    account: Account
    orders: Orders

    async def plan(self, source: BatchInput, window: CompletionWindow) -> tuple[ModelPlan, ...]:
        """Who would take the lines without rates now. Nothing is reserved."""
        shaped = await to_thread.run_sync(_shaped, source.lines, await self._models(source))
        return await self._planned(demands(shaped), window)

    async def prepare(
        self,
        source: BatchInput,
        window: CompletionWindow,
        providers: Sequence[int],
        *,
        max_amount: int | None,
        progress: Progress | None,
        workers: Sequence[Process],
    ) -> PreparedBatch:
        """Raises PlanShort, OrderRefused (naming the line) or QuoteRefused before anything is sent but questions."""
        models = await self._models(source)
        work = await self._work(source, models, await self._bids(source, models, window, providers))
        place = await self._place(work[0], window)
        signer = self.account.wallet()
        if isinstance(signer, LocalSigner):
            outcomes = await batch_pool.prepared(workers, place, signer.wallet, work, progress)
        else:
            outcomes = [await self._signed_remotely(place, line) for line in work]
        lines = [_unless_refused(number, outcome) for number, outcome in enumerate(outcomes, start=1)]
        amount = sum(line.amount for line in lines)
        if max_amount is not None and amount > max_amount:
            raise QuoteRefused(f"the batch comes to {amount}, over {max_amount}", code="over_max_amount")
        texts = [line.text if line.oversized is None else await self._uploaded(line.oversized, line) for line in lines]
        named = [(line.job_id, one.request.custom_id) for line, one in zip(lines, source.lines, strict=True)]
        return PreparedBatch(
            endpoint=source.endpoint,
            completion_window=window,
            content=b"\n".join((*texts, b"")),
            job_ids=tuple(line.job_id for line in lines),
            custom_ids={job_id: custom_id for job_id, custom_id in named if custom_id is not None},
            amount=amount,
            unlisted=tuple(dict.fromkeys(name for line in lines for name in line.unlisted)),
        )

    async def _models(self, source: BatchInput) -> dict[str, Model]:
        names = dict.fromkeys(line.request.model for line in source.lines)
        return {name: await self.account.model(name) for name in names}

    async def _bids(
        self, source: BatchInput, models: dict[str, Model], window: CompletionWindow, providers: Sequence[int]
    ) -> list[Bid]:
        """What is offered for each line. Those without rates are shaped here for the plan; the others are later on."""
        rates = _rates(source.lines)
        unrated = [line for line, given in zip(source.lines, rates, strict=True) if given is None]
        wanted = demands(await to_thread.run_sync(_shaped, unrated, models))
        plans = await self._planned(wanted, window)
        check_plan(wanted, plans)
        keys = [(provider, await self.orders.box_key(provider)) for provider in providers]
        numbers = [models[line.request.model].svc.model_id for line in source.lines]
        turns = [(provider, "0x" + key.raw.hex()) for provider, key in keys]
        return bids(list(zip(numbers, rates, strict=True)), plans, turns)

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

    async def _work(self, source: BatchInput, models: dict[str, Model], offers: Sequence[Bid]) -> list[LineWork]:
        recipients: dict[str, PublicKey] = {}
        for offer in offers:
            key = offer.box_key or ""
            if key not in recipients:
                recipients[key] = read_box_key(key) if key else await self.account.escrow_key()
        return [
            LineWork(line.request, models[line.request.model], offer, recipients[offer.box_key or ""])
            for line, offer in zip(source.lines, offers, strict=True)
        ]

    async def _place(self, first: LineWork, window: CompletionWindow) -> Place:
        """The fee terms of all lines are those of one quote, which is for the first."""
        account = self.account
        market, keys = await account.market(), await account.result_keys()
        now, margin = account.transport.clock.now(), account.settings.settlement_margin
        expires_at = expiry(now, window_seconds(window), margin)
        place = Place(market, account.wallet().address, keys[0].public, expires_at, FeeTerms(0, 0))
        try:
            sealed, shaped = seal_line(place, first)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "line 1") from None
        prepared = PreparedOrder(sealed, await account.wallet().sign(sealed.to_sign()), shaped.unlisted)
        quote = (await self.orders.quote(prepared)).quote
        checked_amount(prepared, quote, None)
        return attrs.evolve(place, fees=fee_terms(quote))

    async def _signed_remotely(self, place: Place, line: LineWork) -> Outcome:
        signer = self.account.wallet()
        try:
            sealed, shaped = await to_thread.run_sync(seal_line, place, line)
            prepared = PreparedOrder(sealed, await signer.sign(sealed.to_sign()), shaped.unlisted)
            amount = amount_of(prepared, place.fees)
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


def _rates(lines: Sequence[BatchLine]) -> list[Rates | None]:
    """Of each line; None where it takes the market's."""
    found = []
    for line in lines:
        try:
            found.append(read_rates(line.request.rate_in, line.request.rate_out))
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {line.number}") from None
    return found


def _shaped(lines: Sequence[BatchLine], models: dict[str, Model]) -> list[Shaped]:
    shaped = []
    for line in lines:
        try:
            shaped.append(shape(line.request, models[line.request.model]))
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"line {line.number}") from None
    return shaped


def _unless_refused(number: int, outcome: Outcome) -> PreparedLine:
    if isinstance(outcome, Refused):
        raise OrderRefused.because(outcome, f"line {number}")
    return outcome
