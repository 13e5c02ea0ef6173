"""Routes that return an answer: models, chat completions, responses, embeddings and images."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

import anyio
import attrs

from common.canonical_json import canonical
from common.scalars import hex_of
from svc.serve.answers import answer_of
from svc.serve.attempts import OpenPurchase
from svc.serve.events import comment, events_of
from svc.serve.exchange import ClientDisconnected, EventReply, LocalRequest, WholeReply
from svc.serve.http import LocalRoute, local_route
from svc.serve.problems import Problem, invalid, model_not_found
from svc.serve.purchases import AnswerPurchases
from svc.serve.requests import MAX_BODY_BYTES, ROUTES, AnswerRequest, Route, listed_model, model_name, read_request

_MAX_IDEMPOTENCY_KEY_LENGTH: Final = 255
_STATUS_TEXT: Final = {
    "preparing": "sealing and signing the order",
    "posting": "posting the job",
    "queued": "waiting for the provider to claim the job",
    "in_progress": "the provider is running the job",
    "completed": "reading the result",
}


@attrs.frozen
class AnswerRoutes:
    buyer: AnswerPurchases
    progress_seconds: float

    def routes(self) -> Sequence[LocalRoute]:
        def buy_route(route: Route) -> LocalRoute:
            async def handle(request: LocalRequest) -> WholeReply | EventReply:
                return await self._buy(request, route)

            return local_route("POST", route, handle)

        return [
            local_route("GET", "/v1/models", self._models),
            local_route("GET", "/v1/models/{name}", self._model),
            *(buy_route(route) for route in ROUTES),
        ]

    async def _models(self, request: LocalRequest) -> WholeReply:
        known = await self.buyer.trade.prices.models()
        allowed = request.key.models
        data = [listed_model(model, name) for name, model in known.items() if not allowed or name in allowed]
        return WholeReply({"object": "list", "data": data})

    async def _model(self, request: LocalRequest, name: str) -> WholeReply:
        known = await self.buyer.trade.prices.models()
        if name not in known or (request.key.models and name not in request.key.models):
            raise model_not_found(name)
        return WholeReply(listed_model(known[name], name))

    async def _buy(self, request: LocalRequest, route: Route) -> WholeReply | EventReply:
        body = await request.read_json(MAX_BODY_BYTES)
        model, rule = await self.buyer.trade.prices.find(model_name(body), request.key.models)
        requested = read_request(route, body, model, rule)
        digest = request.key.digest(route.encode(), _deduplication_bytes(body))
        purchase = await self.buyer.buy(request.key, requested, digest, _idempotency_key(request))
        if requested.form.stream:
            return await self._stream(request, requested, purchase)
        return await self._whole(request, requested, purchase)

    async def _whole(self, request: LocalRequest, requested: AnswerRequest, purchase: OpenPurchase) -> WholeReply:
        """Raises ClientDisconnected. The job is then cancelled if no provider has claimed it."""
        try:
            if not await _wait_while_connected(request, purchase, lambda: purchase.ended):
                raise ClientDisconnected
            bought = await purchase.result()
            answer = answer_of(requested, bought)
        except BaseException:
            self.buyer.stop_waiting(purchase)
            raise

        async def mark_delivered() -> None:
            await self.buyer.mark_delivered(purchase)

        return WholeReply(
            answer,
            headers=bought.headers(),
            on_sent=mark_delivered,
            on_closed=lambda: self.buyer.stop_waiting(purchase),
        )

    async def _stream(
        self, request: LocalRequest, requested: AnswerRequest, purchase: OpenPurchase
    ) -> EventReply | WholeReply:
        """Start the stream once the job is posted. An earlier error is a reply with its own status."""
        try:
            if not await _wait_while_connected(request, purchase, lambda: purchase.is_posted or purchase.ended):
                raise ClientDisconnected
            if purchase.problem is not None:
                raise purchase.problem
        except BaseException:
            self.buyer.stop_waiting(purchase)
            raise
        job = purchase.job
        headers = {} if job is None else {"x-svc-job-id": job.job_id, "x-svc-amount": str(job.amount)}

        async def mark_delivered() -> None:
            if purchase.problem is None:
                await self.buyer.mark_delivered(purchase)

        return EventReply(
            self._events(requested, purchase), headers, mark_delivered, lambda: self.buyer.stop_waiting(purchase)
        )

    async def _events(self, requested: AnswerRequest, purchase: OpenPurchase) -> AsyncGenerator[bytes, None]:
        job_id = hex_of(bytes(32)) if purchase.job is None else purchase.job.job_id
        events = events_of(requested, job_id, int(purchase.row.at))
        for event in events.open_stream():
            yield event
        while not purchase.ended:
            yield comment(_STATUS_TEXT.get(purchase.status, purchase.status))
            with anyio.move_on_after(self.progress_seconds):
                await purchase.changed()
        try:
            for event in events.answer(await purchase.result()):
                yield event
        except Problem as problem:
            for event in events.end_with_error(problem):
                yield event


async def _wait_while_connected(request: LocalRequest, purchase: OpenPurchase, until: Callable[[], bool]) -> bool:
    """Return True once `until` holds, or False if the client disconnects first."""
    reached = False
    async with anyio.create_task_group() as tasks:

        async def gone() -> None:
            await request.wait_for_disconnect()
            tasks.cancel_scope.cancel()

        tasks.start_soon(gone)
        while not until():
            await purchase.changed()
        reached = True
        tasks.cancel_scope.cancel()
    return reached


def _idempotency_key(request: LocalRequest) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _MAX_IDEMPOTENCY_KEY_LENGTH:
        raise invalid(f"idempotency-key must have 1 to {_MAX_IDEMPOTENCY_KEY_LENGTH} characters", "idempotency-key")
    return key


def _deduplication_bytes(body: dict[str, Any]) -> bytes:
    """Return the request in a canonical form, without the options that only change how the answer is sent."""
    return canonical({name: value for name, value in body.items() if name not in {"stream", "stream_options"}})
