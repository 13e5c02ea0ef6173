"""Routes that answer at once: models, chat completions, responses, embeddings, images."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import anyio
import attrs

from common.canonical_json import canonical
from common.scalars import hex_of
from svc.serve.answers import answer_of
from svc.serve.attempts import OpenPurchase
from svc.serve.events import comment, events_of
from svc.serve.exchange import EventReply, LocalRequest, RequesterGone, WholeReply
from svc.serve.http import Handled, handled
from svc.serve.problems import Problem, invalid, no_such_model
from svc.serve.purchases import AnswerPurchases
from svc.serve.requests import LONGEST_BODY, ROUTES, Route, Wanted, listed_model, model_name, read_request

_LONGEST_IDEMPOTENCY: Final = 255
_SAID: Final = {
    "preparing": "sealing and signing the order",
    "posting": "posting the job",
    "queued": "waiting for the provider to claim the job",
    "in_progress": "the provider is at work",
    "completed": "reading the result",
}


@attrs.frozen
class AnswerRoutes:
    buyer: AnswerPurchases
    progress_seconds: float

    def routes(self) -> Sequence[Handled]:
        def buying(route: Route) -> Handled:
            async def act(asked: LocalRequest) -> WholeReply | EventReply:
                return await self._buy(asked, route)

            return handled("POST", route, act)

        return [
            handled("GET", "/v1/models", self._models),
            handled("GET", "/v1/models/{name}", self._model),
            *(buying(route) for route in ROUTES),
        ]

    async def _models(self, asked: LocalRequest) -> WholeReply:
        known = await self.buyer.trade.prices.models()
        allowed = asked.key.models
        data = [listed_model(model, name) for name, model in known.items() if not allowed or name in allowed]
        return WholeReply({"object": "list", "data": data})

    async def _model(self, asked: LocalRequest, name: str) -> WholeReply:
        known = await self.buyer.trade.prices.models()
        if name not in known or (asked.key.models and name not in asked.key.models):
            raise no_such_model(name)
        return WholeReply(listed_model(known[name], name))

    async def _buy(self, asked: LocalRequest, route: Route) -> WholeReply | EventReply:
        body = await asked.json(LONGEST_BODY)
        model, rule = await self.buyer.trade.prices.find(model_name(body), asked.key.models)
        wanted = read_request(route, body, model, rule)
        digest = asked.key.digest(route.encode(), _meaning(body))
        purchase = await self.buyer.buy(asked.key, wanted, digest, _idempotency(asked))
        if wanted.form.stream:
            return await self._stream(asked, wanted, purchase)
        return await self._whole(asked, wanted, purchase)

    async def _whole(self, asked: LocalRequest, wanted: Wanted, purchase: OpenPurchase) -> WholeReply:
        """Raises RequesterGone: the job is then taken back while it can be."""
        try:
            if not await _while_there(asked, purchase, lambda: purchase.ended):
                raise RequesterGone
            bought = await purchase.result()
            made = answer_of(wanted, bought)
        except BaseException:
            self.buyer.leave(purchase)
            raise

        async def delivered() -> None:
            await self.buyer.delivered(purchase)

        return WholeReply(made, headers=bought.headers(), sent=delivered, left=lambda: self.buyer.leave(purchase))

    async def _stream(self, asked: LocalRequest, wanted: Wanted, purchase: OpenPurchase) -> EventReply | WholeReply:
        """Begins once the job is posted: what is refused before is an answer with its own status."""
        try:
            if not await _while_there(asked, purchase, lambda: purchase.posted or purchase.ended):
                raise RequesterGone
            if purchase.problem is not None:
                raise purchase.problem
        except BaseException:
            self.buyer.leave(purchase)
            raise
        job = purchase.job
        headers = {} if job is None else {"x-svc-job-id": job.job_id, "x-svc-amount": str(job.amount)}

        async def delivered() -> None:
            if purchase.problem is None:
                await self.buyer.delivered(purchase)

        return EventReply(self._events(wanted, purchase), headers, delivered, lambda: self.buyer.leave(purchase))

    async def _events(self, wanted: Wanted, purchase: OpenPurchase) -> AsyncGenerator[bytes, None]:
        job_id = hex_of(bytes(32)) if purchase.job is None else purchase.job.job_id
        events = events_of(wanted, job_id, int(purchase.row.at))
        for event in events.begin():
            yield event
        while not purchase.ended:
            yield comment(_SAID.get(purchase.status, purchase.status))
            with anyio.move_on_after(self.progress_seconds):
                await purchase.changed()
        try:
            for event in events.answer(await purchase.result()):
                yield event
        except Problem as problem:
            for event in events.fail(problem):
                yield event


async def _while_there(asked: LocalRequest, purchase: OpenPurchase, until: Callable[[], bool]) -> bool:
    """True once `until` holds of the purchase; False where the caller went away before."""
    held = False
    async with anyio.create_task_group() as tasks:

        async def gone() -> None:
            await asked.until_gone()
            tasks.cancel_scope.cancel()

        tasks.start_soon(gone)
        while not until():
            await purchase.changed()
        held = True
        tasks.cancel_scope.cancel()
    return held


def _idempotency(asked: LocalRequest) -> str | None:
    key = asked.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_IDEMPOTENCY:
        raise invalid(f"idempotency-key must have 1 to {_LONGEST_IDEMPOTENCY} signs", "idempotency-key")
    return key


def _meaning(body: dict[str, Any]) -> bytes:
    """What is asked for, however it is written and to be answered."""
    return canonical({name: value for name, value in body.items() if name not in {"stream", "stream_options"}})
