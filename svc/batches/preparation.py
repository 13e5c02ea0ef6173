"""From lines to a batch file of complete submissions: planned, sealed, signed and paid for, line by line."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import attrs
from anyio import to_thread

from common.quotes import FeeTerms
from common.refusal import Refused
from svc.account import Account
from svc.batches.offers import LineOffer, Offers, Portion, shaped
from svc.core.batch_bids import ModelDemand, check_plan, demands, market_rates, plan_bodies
from svc.core.batch_lines import read_lines
from svc.core.batches import LineWork, Place, PreparedLine, line_amount, line_of, prepare_lines, seal_line
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
