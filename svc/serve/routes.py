"""Routes that return an answer: models, chat completions, responses, embeddings and images."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import anyio
import attrs

from common.canonical_json import canonical
from common.scalars import hex_of
from svc.errors import SvcError
from svc.serve.answers import build_answer
from svc.serve.attempts import OpenPurchase
from svc.serve.events import ChatEvents, ResponseEvents, build_events, comment_line
from svc.serve.exchange import ClientDisconnected, EventReply, LocalRequest, WholeReply
from svc.serve.http import LocalRoute, local_route
from svc.serve.ledger import LedgerJob
from svc.serve.problems import Problem, invalid_request, model_not_found
from svc.serve.purchases import AnswerPurchases
from svc.serve.request_ids import job_id_headers
from svc.serve.requests import MAX_BODY_BYTES, ROUTES, AnswerRequest, Route, model_json, read_model_name, read_request
from svc.tabs.tab import TabStream

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
    """Handlers of the routes that return answers. `progress_seconds`: interval of progress comments in a stream."""

    purchases: AnswerPurchases
    progress_seconds: float

    def routes(self) -> Sequence[LocalRoute]:
        def buy_route(route: Route) -> LocalRoute:
            async def handle(request: LocalRequest) -> WholeReply | EventReply:
                return await self._buy(request, route)

            return local_route("POST", route, handle)

        return [
            local_route("GET", "/v1/models", self._list_models),
            local_route("GET", "/v1/models/{name}", self._get_model),
            *(buy_route(route) for route in ROUTES),
        ]

    async def _list_models(self, request: LocalRequest) -> WholeReply:
        known = await self.purchases.context.prices.models()
        allowed = request.key.models
        data = [model_json(model, name) for name, model in known.items() if not allowed or name in allowed]
        return WholeReply({"object": "list", "data": data})

    async def _get_model(self, request: LocalRequest, name: str) -> WholeReply:
        known = await self.purchases.context.prices.models()
        if name not in known or (request.key.models and name not in request.key.models):
            raise model_not_found(name)
        return WholeReply(model_json(known[name], name))

    async def _buy(self, request: LocalRequest, route: Route) -> WholeReply | EventReply:
        body = await request.read_json(MAX_BODY_BYTES)
        model, rule = await self.purchases.context.prices.find_model(read_model_name(body), request.key.models)
        requested = attrs.evolve(read_request(route, body, model, rule), max_amount=request.max_amount)
        digest = request.key.digest(route.encode(), _deduplication_bytes(body))
        purchase = await self.purchases.buy(request.key, requested, digest, _idempotency_key(request))
        if requested.form.stream:
            return await self._stream_reply(request, requested, purchase)
        return await self._whole_reply(request, requested, purchase)

    async def _whole_reply(self, request: LocalRequest, requested: AnswerRequest, purchase: OpenPurchase) -> WholeReply:
        """Return the complete answer. Raises ClientDisconnected, after which an unclaimed job is cancelled."""
        try:
            if not await _wait_while_connected(request, purchase, lambda: purchase.ended):
                raise ClientDisconnected
            bought = await purchase.result()
            answer = build_answer(requested, bought)
        except BaseException:
            self.purchases.stop_waiting(purchase)
            raise

        async def mark_delivered() -> None:
            await self.purchases.mark_delivered(purchase)

        return WholeReply(
            answer,
            headers=bought.headers(),
            on_sent=mark_delivered,
            on_closed=lambda: self.purchases.stop_waiting(purchase),
        )

    async def _stream_reply(
        self, request: LocalRequest, requested: AnswerRequest, purchase: OpenPurchase
    ) -> EventReply | WholeReply:
        """Wait until the job is posted, and return the stream.

        Raises ClientDisconnected, or Problem if no job is posted.
        """
        try:
            if not await _wait_while_connected(request, purchase, lambda: purchase.is_posted or purchase.ended):
                raise ClientDisconnected
            if purchase.problem is not None:
                raise purchase.problem
        except BaseException:
            self.purchases.stop_waiting(purchase)
            raise
        job = purchase.job
        headers = {} if job is None else _job_headers(job)

        async def mark_delivered() -> None:
            if purchase.problem is None:
                await self.purchases.mark_delivered(purchase)

        return EventReply(
            self._stream_events(requested, purchase),
            headers,
            mark_delivered,
            lambda: self.purchases.stop_waiting(purchase),
        )

    async def _stream_events(self, requested: AnswerRequest, purchase: OpenPurchase) -> AsyncGenerator[bytes, None]:
        job_id = hex_of(bytes(32)) if purchase.job is None else purchase.job.job_id
        events = build_events(requested, job_id, int(purchase.row.created_at))
        for event in events.opening_events():
            yield event
        shown: TabStream | None = None
        while not purchase.ended:
            if purchase.tab_stream is not None and purchase.tab_stream is not shown:
                shown = purchase.tab_stream
                async with aclosing(_live_events(purchase, shown, events)) as live:
                    async for event in live:
                        yield event
                continue
            yield comment_line(_STATUS_TEXT.get(purchase.status, purchase.status))
            with anyio.move_on_after(self.progress_seconds):
                await purchase.wait_for_change()
        try:
            for event in events.answer_events(await purchase.result()):
                yield event
        except Problem as problem:
            for event in events.error_events(problem):
                yield event


async def _live_events(
    purchase: OpenPurchase, stream: TabStream, events: ChatEvents | ResponseEvents
) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer while a provider computes it. Stop at an error: the purchase handles errors."""
    with suppress(SvcError):
        async for chunk in stream:
            for event in events.live_events(chunk):
                purchase.is_partly_streamed = True
                yield event


async def _wait_while_connected(request: LocalRequest, purchase: OpenPurchase, condition: Callable[[], bool]) -> bool:
    """Return True once `condition()` is true, or False if the client disconnects first."""
    reached = False
    async with anyio.create_task_group() as tasks:

        async def stop_at_disconnect() -> None:
            await request.wait_for_disconnect()
            tasks.cancel_scope.cancel()

        tasks.start_soon(stop_at_disconnect)
        while not condition():
            await purchase.wait_for_change()
        reached = True
        tasks.cancel_scope.cancel()
    return reached


def _idempotency_key(request: LocalRequest) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _MAX_IDEMPOTENCY_KEY_LENGTH:
        raise invalid_request(
            f"idempotency-key must have 1 to {_MAX_IDEMPOTENCY_KEY_LENGTH} characters", "idempotency-key"
        )
    return key


def _job_headers(job: LedgerJob) -> dict[str, str]:
    return {**job_id_headers(job.job_id), "x-svc-amount": str(job.amount)}


def _deduplication_bytes(body: dict[str, Any]) -> bytes:
    """Return the request in a canonical form, without the options that only change how the answer is sent."""
    return canonical({name: value for name, value in body.items() if name not in {"stream", "stream_options"}})
