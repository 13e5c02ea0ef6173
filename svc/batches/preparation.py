"""Prepare a batch file of complete submissions: plan, seal, sign and pay line by line."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import attrs
from anyio import to_thread

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.batches.offers import LineOffer, Offers, Portion, price_lines
from svc.core.batch_bids import ModelDemand, check_plan, demands, market_rates, plan_bodies
from svc.core.batch_lines import read_lines
from svc.core.batches import BatchContext, LineOrder, PreparedLine, line_amount, line_of, prepare_lines, seal_line
from svc.core.bids import Rates
from svc.core.orders import PreparedOrder
from svc.core.windows import CompletionWindow, window_seconds
from svc.errors import NoProvider, OrderRefused
from svc.market import Market
from svc.orders import Orders
from svc.records import ModelPlan, Record
from svc.signers import LocalSigner
from svc.wire.transport import read

Outcome = PreparedLine | Refused
Progress = Callable[[int], object]


Texts = Iterable[bytes | str | Mapping[str, Any]]

_PAYMENT_REQUIRED: Final = frozenset({402})


class Plan(Record, frozen=True):
    """Answer to a plan request."""

    plan: tuple[ModelPlan, ...]


@attrs.frozen(slots=True)
class PreparedBatch:
    """Batch file that can be posted.

    Keep `custom_ids` (by job id): they are sealed, and the coordinator cannot return them.

    `amount`: maximum amount of all lines in base units, collected line by line as they are claimed. `fees`: the charges
    of the lines.
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
    """Prepares batches."""

    account: Account
    orders: Orders

    async def plan(
        self, texts: Texts, window: CompletionWindow, offer: "LineOffer | None" = None
    ) -> tuple[ModelPlan, ...]:
        """Return which providers would take the lines without rates. Nothing is reserved."""
        texts = list(texts)
        offered_rates = await self._offered_rates(texts, window, offer, ())
        lines = await to_thread.run_sync(list, read_lines(texts, window, offered_rates))
        models = {name: await self.account.model(name) for name in dict.fromkeys(line.request.model for line in lines)}
        return await self._request_plans(demands(await to_thread.run_sync(price_lines, lines, models)), window)

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
        """Prepare a batch. Before any upload, raises PlanShort, OrderRefused (with the line) or QuoteRefused."""
        total_ceiling = await self.account.batch_ceiling(max_amount)
        # A line above its ceiling is never signed. A batch above its ceiling is never sent.
        line_ceiling = min(
            total_ceiling, await self.account.line_ceiling(max_line_amount), key=lambda ceiling: ceiling.max_amount
        )
        texts, signer = list(texts), self.account.wallet()
        offered_rates = await self._offered_rates(texts, window, offer, providers)
        offers = await Offers.create(
            providers, self.orders, window, line_ceiling, read_lines(texts, window, offered_rates)
        )
        lines: list[PreparedLine] = []
        if isinstance(signer, LocalSigner):  # with a remote signer, check the whole file first
            await self._prepare_lines(offers.rated_portions(), lines, progress)
        model_demands = await offers.demands()
        plans = await self._request_plans(model_demands, window)
        check_plan(model_demands, plans)
        await self._prepare_lines(offers.planned_portions(plans), lines, progress)
        amount = sum(line.amount for line in lines)
        total_ceiling.check(amount, "the batch")
        contents = [line.text if line.oversized is None else await self._upload(line.oversized, line) for line in lines]
        ids = [(line.job_id, custom_id) for line, custom_id in zip(lines, offers.custom_ids, strict=True)]
        return PreparedBatch(
            endpoint=offers.endpoint,
            completion_window=window,
            content=b"\n".join((*contents, b"")),
            job_ids=tuple(line.job_id for line in lines),
            custom_ids={job_id: custom_id for job_id, custom_id in ids if custom_id is not None},
            amount=amount,
            fees=offers.fees,
            unlisted=tuple(dict.fromkeys(name for line in lines for name in line.unlisted)),
        )

    async def _offered_rates(
        self,
        texts: Sequence[bytes | str | Mapping[str, Any]],
        window: CompletionWindow,
        offer: "LineOffer | None",
        providers: Sequence[int],
    ) -> dict[str, Rates]:
        """Return the rates for lines without rates, by model: from the offer, or from the current asks.

        Raises NoProvider for a model without asks in this window.
        """
        if offer is None:
            return {}
        lines = await to_thread.run_sync(list, read_lines(texts, window))
        names = list(dict.fromkeys(line.request.model for line in lines if line.rates is None))
        if offer.rates is not None:
            return dict.fromkeys(names, offer.rates)
        offered_rates = {}
        for name in names:
            model, seconds = await self.account.model(name), window_seconds(window)
            asks = await Market(self.account).asks(model=model.svc.model_id, limit=None)
            matching = [ask for ask in asks if ask.sla == seconds and (not providers or ask.provider_id in providers)]
            if not matching:
                subject = f"none of the providers {', '.join(map(str, providers))}" if providers else "no provider"
                raise NoProvider(f"{subject} has an ask for {name} in a window of {window}")
            offered_rates[name] = market_rates(matching, for_all_providers=bool(providers))
        return offered_rates

    async def _request_plans(
        self, model_demands: Sequence[ModelDemand], window: CompletionWindow
    ) -> tuple[ModelPlan, ...]:
        plans: tuple[ModelPlan, ...] = ()
        for body in plan_bodies(model_demands, window):
            plans += await self._request_plan(body)
        return plans

    async def _request_plan(self, body: dict[str, Any]) -> tuple[ModelPlan, ...]:
        async def send(headers: dict[str, str]) -> tuple[ModelPlan, ...]:
            answer = await self.account.transport.send(
                "POST", "/v1/batches", json=body, headers=headers, expected=_PAYMENT_REQUIRED
            )
            return read(answer, Plan).plan

        return await self.account.authorised(send)

    async def _prepare_lines(
        self, portions: AsyncGenerator[Portion, None], prepared_lines: list[PreparedLine], progress: Progress | None
    ) -> None:
        """Append the submission of each line to `prepared_lines`. Raises OrderRefused for the first rejected line."""
        signer = self.account.wallet()
        async with aclosing(portions):
            async for portion in portions:
                # One thread: each line holds the GIL for half of its time, so a second thread gains little.
                if isinstance(signer, LocalSigner):
                    outcomes = await to_thread.run_sync(prepare_lines, portion.context, signer.wallet, portion.lines)
                else:
                    outcomes = [await self._prepare_remotely(portion.context, line) for line in portion.lines]
                for outcome in outcomes:
                    if isinstance(outcome, Refused):
                        raise OrderRefused.because(outcome, f"line {len(prepared_lines) + 1}")
                    prepared_lines.append(outcome)
                if progress is not None:
                    progress(len(prepared_lines))

    async def _prepare_remotely(self, context: BatchContext, line: LineOrder) -> Outcome:
        signer = self.account.wallet()
        try:
            sealed, priced = await to_thread.run_sync(seal_line, context, line)
            prepared = PreparedOrder(sealed, await signer.sign(sealed.to_sign()), priced.unlisted)
            amount = line_amount(context, prepared)
        except Refused as refusal:
            return refusal
        if not sealed.sealed.fits_inline:
            return PreparedLine(prepared.id, amount, b"", prepared.unlisted, prepared)
        text = line_of(prepared, amount, await signer.sign(prepared.payment(amount)))
        return PreparedLine(prepared.id, amount, text, prepared.unlisted)

    async def _upload(self, prepared: PreparedOrder, line: PreparedLine) -> bytes:
        """Upload an oversized container. Done last, because an unreferenced upload is kept for only five minutes."""
        container = prepared.sealed_order.sealed.container
        file = await self.orders.files.upload(container, "input", filename="container")
        signature = await self.account.wallet().sign(prepared.payment(line.amount))
        return line_of(prepared, line.amount, signature, file.svc.cid)
