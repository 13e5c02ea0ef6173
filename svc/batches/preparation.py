"""Prepare a batch file of complete submissions: plan the lines, cut them into jobs, then seal and sign the jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import attrs
import msgspec
from anyio import to_thread

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.batches.offers import JobOrderBuilder, LineOffer, OrderGroup, ProviderBundleLimits, price_lines
from svc.core.batch_bids import BidChooser, JobLines, ModelDemand, market_rates, plan_bodies, sum_demands
from svc.core.batch_lines import RESPONSES_ENDPOINT, BatchLine, read_lines
from svc.core.batches import (
    BatchContext,
    JobOrder,
    PreparedJob,
    RejectedLine,
    find_rejected_line,
    job_amount,
    prepare_jobs,
    price_jobs,
    seal_job,
    submission_line,
    unlisted_parameters,
)
from svc.core.bids import Rates
from svc.core.money import Ceiling
from svc.core.order_request import PricedRequest
from svc.core.orders import PreparedOrder
from svc.core.windows import CompletionWindow, window_seconds
from svc.errors import NoProvider, OrderRefused, PlanShort
from svc.market import Market
from svc.orders import Orders
from svc.records import ModelPlan, Record
from svc.signers import LocalSigner
from svc.wire.transport import read_record

OnPrepared = Callable[[int], object]  # called with the number of prepared lines


RawLines = Iterable[bytes | str | Mapping[str, Any]]

_PAYMENT_REQUIRED: Final = frozenset({402})


class PlanAnswer(Record, frozen=True):
    """Coordinator's answer to a plan request."""

    plan: tuple[ModelPlan, ...]


@attrs.frozen(slots=True)
class PreparedBatch:
    """Batch file that can be posted, with a submission for each job.

    `sizes`: number of lines of each job. `custom_ids`: custom id by line number. Store the custom ids, because
    they are sealed and the coordinator cannot return them. `amount`: maximum cost of all jobs in base units. The
    payment of each job is collected when the job is claimed. `fees`: the charges of the jobs.
    """

    endpoint: str
    completion_window: CompletionWindow
    content: bytes = attrs.field(repr=False)
    job_ids: tuple[str, ...] = attrs.field(repr=False)
    sizes: tuple[int, ...] = attrs.field(repr=False)
    custom_ids: dict[int, str] = attrs.field(repr=False)
    amount: int
    fees: FeeTerms
    unlisted: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        return sum(self.sizes)


@attrs.frozen(slots=True)
class _PlannedBatch:
    """Checked lines of a batch, with their plans and the object that chooses a bid for each job."""

    lines: Sequence[BatchLine]
    priced: Sequence[PricedRequest]
    plans: tuple[ModelPlan, ...]
    bid_chooser: BidChooser


@attrs.frozen
class Preparation:
    """Plans, prices, seals and signs the lines of a batch."""

    account: Account
    orders: Orders

    async def plan(
        self, raw_lines: RawLines, window: CompletionWindow, offer: "LineOffer | None" = None, bundle: int | None = None
    ) -> tuple[ModelPlan, ...]:
        """Return a plan for each model, with the number of lines for each provider. No capacity is reserved."""
        planned = await self._read_and_plan(list(raw_lines), window, (), offer, bundle)
        unrated = [line for line in planned.priced if line.rates is None]
        for plan in planned.plans:
            with suppress(PlanShort):
                for _ in planned.bid_chooser.cut_into_jobs(
                    [line for line in unrated if line.model.svc.model_id == plan.model_id]
                ):
                    pass
        return tuple(
            _with_assigned_lines(plan, planned.bid_chooser.planned_lines(plan.model_id)) for plan in planned.plans
        )

    async def prepare(
        self,
        raw_lines: RawLines,
        window: CompletionWindow,
        providers: Sequence[int],
        *,
        offer: "LineOffer | None",
        bundle: int | None,
        max_amount: int | None,
        max_line_amount: int | None,
        progress: OnPrepared | None,
    ) -> PreparedBatch:
        """Prepare a batch. Raises PlanShort, OrderRefused (which names the line) or QuoteRefused before any upload."""
        total_ceiling, line_ceiling = await self._ceilings(max_amount, max_line_amount)
        self.account.wallet()
        planned = await self._read_and_plan(list(raw_lines), window, providers, offer, bundle)
        jobs = await to_thread.run_sync(lambda: list(planned.bid_chooser.cut_into_jobs(planned.priced)))
        context, prepared = await self._prepare_jobs(JobOrderBuilder(self.orders, window, line_ceiling), jobs, progress)
        amount = sum(job.amount for job in prepared)
        total_ceiling.check(amount, "the batch")
        contents = [
            job.line_text if job.oversized is None else await self._upload(job.oversized, job) for job in prepared
        ]
        return PreparedBatch(
            endpoint=planned.lines[-1].url if planned.lines else RESPONSES_ENDPOINT,
            completion_window=window,
            content=b"\n".join((*contents, b"")),
            job_ids=tuple(job.job_id for job in prepared),
            sizes=tuple(job.line_count for job in prepared),
            custom_ids=custom_ids_by_line(planned.lines),
            amount=amount,
            fees=context.fee_terms,
            unlisted=tuple(dict.fromkeys(name for job in prepared for name in job.unlisted_parameters)),
        )

    async def price(
        self,
        raw_lines: RawLines,
        window: CompletionWindow,
        providers: Sequence[int],
        *,
        offer: "LineOffer | None",
        bundle: int | None,
        max_amount: int | None,
        max_line_amount: int | None,
    ) -> int:
        """Return the amount that `prepare` would authorise for a batch now. Raises the errors of `prepare`.

        Only the first line is sealed and signed, because a quote of the charges needs a signed order.
        """
        total_ceiling, line_ceiling = await self._ceilings(max_amount, max_line_amount)
        planned = await self._read_and_plan(list(raw_lines), window, providers, offer, bundle)
        jobs = await to_thread.run_sync(lambda: list(planned.bid_chooser.cut_into_jobs(planned.priced)))
        total = 0
        async with aclosing(JobOrderBuilder(self.orders, window, line_ceiling).order_groups(jobs)) as order_groups:
            async for group in order_groups:
                for amount in await to_thread.run_sync(price_jobs, group.context, group.orders):
                    if isinstance(amount, RejectedLine):
                        raise OrderRefused.because(amount.refusal, f"line {amount.number}")
                    total += amount
        total_ceiling.check(total, "the batch")
        return total

    async def _ceilings(self, max_amount: int | None, max_line_amount: int | None) -> tuple[Ceiling, Ceiling]:
        """Return the ceiling of the whole batch, and the ceiling of each line."""
        total = await self.account.batch_ceiling(max_amount)
        line = await self.account.line_ceiling(max_line_amount)
        return total, min(total, line, key=lambda ceiling: ceiling.max_amount)

    async def _read_and_plan(
        self,
        raw_lines: Sequence[bytes | str | Mapping[str, Any]],
        window: CompletionWindow,
        providers: Sequence[int],
        offer: "LineOffer | None",
        bundle: int | None,
    ) -> _PlannedBatch:
        """Read, check and plan the whole file."""
        keys = [(provider, await self.orders.box_key(provider)) for provider in providers]
        offered_rates = await self._find_offered_rates(raw_lines, window, offer, providers)
        lines, malformed = await to_thread.run_sync(_read_lines, raw_lines, window, offered_rates)
        models = {name: await self.account.model(name) for name in dict.fromkeys(line.request.model for line in lines)}
        priced = await to_thread.run_sync(price_lines, lines, models)
        # Raise the error of the malformed line only now, because `price_lines` may reject an earlier line.
        if malformed is not None:
            raise malformed
        model_demands = sum_demands(priced)
        plans = await self._request_plans(model_demands, window)
        # Open orders are never bundled. So only planned lines, and lines for named providers, need bundle limits.
        bundled = list(models.values()) if providers else [models[demand.name] for demand in model_demands]
        bundle_limits = await ProviderBundleLimits.read(self.account, bundled, window, bundle)
        bid_chooser = BidChooser(
            [(provider, "0x" + key.raw.hex()) for provider, key in keys], bundle_limits.find_limits
        )
        bid_chooser.use_plans(plans)
        return _PlannedBatch(lines, priced, plans, bid_chooser)

    async def _find_offered_rates(
        self,
        raw_lines: Sequence[bytes | str | Mapping[str, Any]],
        window: CompletionWindow,
        offer: "LineOffer | None",
        providers: Sequence[int],
    ) -> dict[str, Rates]:
        """Return the rates for lines without rates, by model: from the offer, or from the current asks.

        Raises NoProvider for a model without asks in this window.
        """
        if offer is None:
            return {}
        lines = await to_thread.run_sync(list, read_lines(raw_lines, window))
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
            return read_record(answer, PlanAnswer).plan

        return await self.account.authorised(send)

    async def _prepare_jobs(
        self, offers: JobOrderBuilder, jobs: Sequence[JobLines], progress: OnPrepared | None
    ) -> tuple[BatchContext, list[PreparedJob]]:
        """Return the submission of each job. Raises OrderRefused for the first rejected line."""
        prepared: list[PreparedJob] = []
        async with aclosing(offers.order_groups(jobs)) as order_groups:
            async for group in order_groups:
                for outcome in await self._prepare_group(group):
                    if isinstance(outcome, RejectedLine):
                        raise OrderRefused.because(outcome.refusal, f"line {outcome.number}")
                    prepared.append(outcome)
                if progress is not None:
                    progress(sum(job.line_count for job in prepared))
        return group.context, prepared

    async def _prepare_group(self, group: OrderGroup) -> list[PreparedJob | RejectedLine]:
        signer = self.account.wallet()
        # Use one thread. Sealing holds the GIL half of the time, so more threads would hardly be faster.
        if isinstance(signer, LocalSigner):
            return await to_thread.run_sync(prepare_jobs, group.context, signer.wallet, group.orders)
        return [await self._prepare_remotely(group.context, order) for order in group.orders]

    async def _prepare_remotely(self, context: BatchContext, order: JobOrder) -> PreparedJob | RejectedLine:
        signer = self.account.wallet()
        if (rejected := find_rejected_line(context, order)) is not None:
            return rejected
        try:
            sealed = await to_thread.run_sync(seal_job, context, order)
            prepared = PreparedOrder(sealed, await signer.sign(sealed.signing_request()), unlisted_parameters(order))
            amount = job_amount(context, prepared)
        except Refused as refusal:
            return RejectedLine(order.job_lines.first_line_number, refusal)
        lines = len(order.job_lines.lines)
        if not sealed.sealed_container.fits_inline:
            return PreparedJob(prepared.id, amount, b"", lines, prepared.unlisted_parameters, prepared)
        text = submission_line(prepared, amount, await signer.sign(prepared.payment(amount)))
        return PreparedJob(prepared.id, amount, text, lines, prepared.unlisted_parameters)

    async def _upload(self, prepared: PreparedOrder, job: PreparedJob) -> bytes:
        """Upload an oversized container, and return the submission of its job.

        Call this last, because the coordinator keeps an unused upload for only five minutes.
        """
        container = prepared.sealed_order.sealed_container.container
        file = await self.orders.files.upload(container, "input", filename="container")
        signature = await self.account.wallet().sign(prepared.payment(job.amount))
        return submission_line(prepared, job.amount, signature, file.svc.cid)


def _read_lines(
    raw_lines: RawLines, window: CompletionWindow, offered_rates: Mapping[str, Rates]
) -> tuple[list[BatchLine], OrderRefused | None]:
    """Return the lines before the first malformed line, and the error for the malformed line."""
    lines: list[BatchLine] = []
    try:
        lines.extend(read_lines(raw_lines, window, offered_rates))
    except OrderRefused as malformed:
        return lines, malformed
    return lines, None


def custom_ids_by_line(lines: Iterable[BatchLine]) -> dict[int, str]:
    """Return the custom ids by line number."""
    return {line.number: line.request.custom_id for line in lines if line.request.custom_id is not None}


def _with_assigned_lines(plan: ModelPlan, lines: Sequence[int]) -> ModelPlan:
    """Return the plan with the number of lines given to each provider."""
    shares = zip(plan.allocation, lines, strict=True)
    return msgspec.structs.replace(
        plan, allocation=tuple(msgspec.structs.replace(share, lines=count) for share, count in shares if count)
    )
