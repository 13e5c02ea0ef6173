"""Routes that stream all events, or the events of one job, as server-sent events."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import attrs

from common.api import limits, worked_order
from common.api.events import EventsReset, JobEvent
from common.api.fields import ADDRESS, BYTES32, Choice, Decimal, Text
from common.api.progress import ProgressStep, ProvisionalJob
from common.api.states import JobState
from common.api.words import NOTHING, WORDS
from common.scalars import hex_of
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import stream
from coordinatord.api.events.places import Places
from coordinatord.api.events.progress_hub import ProgressHub
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.responses import Headers, Response
from coordinatord.http.routing import INDEX, Parameter, Reply, Request, Route, malformed
from coordinatord.http.streaming import StreamedResponse
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead

RESPOND_ASYNC: Final = "respond-async"
PREFER: Final = {
    "prefer": Parameter(
        Text(limits.HEADER_VALUE_BYTES), f"`{RESPOND_ASYNC}`: answer 202 as soon as it is stored and will be sent"
    )
}
_OF_OTHERS: Final = [name for name in ProgressStep.__struct_fields__ if name not in ("op", "rests_on")]
STORED: Final = Reply(
    202,
    shape=ProvisionalJob,
    about="To `prefer: respond-async`: it is stored, and will be sent; follow the job's progress",
    example={"status": "queued", "steps": [{"op": "post", **dict.fromkeys(_OF_OTHERS, NOTHING)}]},
    headers=("preference-applied", "location"),
)
REPLAY_PIECE_REQUESTS: Final = 4  # requests that a piece of missed events counts for


@attrs.frozen(slots=True)
class BeforeBlocks:
    """Responds to callers that prefer `respond-async` before their op is mined."""

    progress: ProgressHub

    async def stored(self, job_id: bytes) -> Response:
        """Return 202 for an op of the job that is in the outbox."""
        progress = await self.progress.read(job_id)
        if progress is None:  # refused and deleted already; resubmitting returns the reason
            raise Retryable(
                "not_ready", "the job's progress is not known yet; send the same request again", retry_after=1
            )
        location = f"/v1/jobs/{hex_of(job_id)}/progress"
        headers = ((b"preference-applied", RESPOND_ASYNC.encode()), (b"location", location.encode()))
        return responses.ok(progress, status=202, headers=headers)


EVENT_STREAM: Final = "text/event-stream"
STREAM_HEADERS: Final[Headers] = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
)
LAST_EVENT_ID: Final = "last-event-id"
_AFTER: Final = Parameter(Decimal(63), "continue after the event of this id: the events since come first, or `reset`")
RESUMED: Final = {"after": _AFTER}
RESUMED_BY_HEADER: Final = {
    LAST_EVENT_ID: attrs.evolve(_AFTER, about="the same, as browsers send it; it takes precedence")
}
_STATES: Final = {
    "Open": JobState.OPEN,
    "Claimed": JobState.CLAIMED,
    "Settled": JobState.SETTLED,
    "Cancelled": JobState.CANCELLED,
}
_SHAPES: Final = (JobEvent, EventsReset)
_OF_PROVIDER: Final = {"wallet": WORDS["operator"].example, "provider_id": "2"}
_RUN_AHEAD: Final = {
    "steps": [
        {"op": "post", "rests_on": "block", "tx_hash": worked_order.TX, "block": "41"},
        {"op": "claim", "rests_on": "broadcast", "tx_hash": worked_order.TX, **_OF_PROVIDER},
        {
            "op": "settle",
            "rests_on": "stored",
            **_OF_PROVIDER,
            "result_cid": worked_order.RESULT_CID,
            "completion_tok": "14",
        },
    ]
}


def after_of(request: Request) -> int | None:
    """Return the id that a caller continues after."""
    after: int | None = request.headers.get(LAST_EVENT_ID, request.query.get("after"))
    return after


def events_reply(about: str, *shapes: object) -> Reply:
    return Reply(200, media=(EVENT_STREAM,), lines=shapes, about=about)


@attrs.frozen(slots=True)
class EventRoutes:
    hub: EventHub
    places: Places
    present: BatchedReads[bytes, IndexRead[LoggedEvent]]
    progress: ProgressHub
    buckets: TokenBuckets

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/evm/events",
                id="followEvents",
                tag="Job book",
                about="Follow the events of jobs, as server-sent events",
                details=(
                    "Each message has an `id`, the `event` and a JSON object as `data`. All filters are optional; a"
                    " provider's are its own jobs and those designated to it. `taken_back`: a reorganisation undid an"
                    " event, whose members come again. `reset`: events are missing, read again what you follow."
                    " A comment comes every 20 seconds or so. An event is a hint and no proof: read the job."
                ),
                handler=self.all,
                query={
                    "model": Parameter(Decimal(32), "events of jobs of the model of this id"),
                    "provider": Parameter(Decimal(32), "events of jobs of the provider of this id, or for it alone"),
                    "owner": Parameter(ADDRESS, "events of jobs of this wallet"),
                    "state": Parameter(Choice(tuple(_STATES)), "events that leave a job in this state"),
                    **RESUMED,
                },
                headers=RESUMED_BY_HEADER,
                replies=(
                    events_reply("The events, until the caller disconnects", *_SHAPES),
                    *malformed(),
                    Reply(429, "busy"),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}/events",
                id="followJob",
                tag="Jobs",
                about="Follow one job, as server-sent events",
                details=(
                    "As GET /evm/events, of this job alone. The first message is the job's present state, at the"
                    " index's block. A caller that comes back with an id receives the events since instead."
                ),
                handler=self.of_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=WORDS["job_id"].example)},
                query={
                    "provisional": Parameter(
                        Choice(("0", "1")),
                        "`1`: send what GET /v1/jobs/{id}/progress answers as `provisional`, at first and at each"
                        " change, as soon as the post is stored",
                    ),
                    **RESUMED,
                },
                headers=RESUMED_BY_HEADER,
                replies=(
                    events_reply("The job's events", *_SHAPES, ProvisionalJob),
                    *malformed(),
                    Reply(404),
                    Reply(429, "busy"),
                    *INDEX,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}/progress",
                id="getJobProgress",
                tag="Jobs",
                about="Read a job with the ops that are under way, before their blocks",
                details=(
                    "Each step names its evidence. A settle that is stored names the result, which can be fetched,"
                    " opened and used from then on. It is provisional until its block, and a later answer shows when it"
                    " failed. Only the chain decides: check it later, because a provisional answer may be wrong."
                ),
                handler=self.progress_of_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=WORDS["job_id"].example)},
                replies=(
                    Reply(200, shape=ProvisionalJob, about="The job's progress", example=_RUN_AHEAD),
                    *malformed(),
                    Reply(404),
                    *INDEX,
                ),
                index_backed=True,
                of_the_moment=True,
            ),
        ]

    async def all(self, request: Request) -> StreamedResponse:
        query = request.query
        wanted = EventFilter(
            owner=query.get("owner"),
            model_id=query.get("model"),
            provider_id=query.get("provider"),
            state=_STATES.get(query.get("state", "")),
        )
        return self._followed(request, wanted)

    async def of_job(self, request: Request) -> Response | StreamedResponse:
        job_id = request.path["id"]
        provisional = request.query.get("provisional") == "1"
        known = await self.progress.read(job_id) if provisional else (await self.present.get(job_id)).value
        if known is None:
            return responses.not_found(NoSuchObject("job"))
        return self._followed(request, EventFilter(job_id=job_id), provisional=provisional)

    async def progress_of_job(self, request: Request) -> Response:
        progress = await self.progress.read(request.path["id"])
        return responses.not_found(NoSuchObject("job")) if progress is None else responses.ok(progress)

    def _followed(self, request: Request, wanted: EventFilter, *, provisional: bool = False) -> StreamedResponse:
        return StreamedResponse(200, STREAM_HEADERS, None, partial(self._opened, request, wanted, provisional))

    @asynccontextmanager
    async def _opened(
        self, request: Request, wanted: EventFilter, provisional: bool
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with AsyncExitStack() as held:
            held.enter_context(self.places.held(request.caller, "stream"))
            after = after_of(request)
            turn = partial(self.buckets.turn, request.caller, REPLAY_PIECE_REQUESTS)
            listener, since = await held.enter_async_context(self.hub.following(wanted, after, turn))
            present, job_id = None, wanted.job_id
            if job_id is not None and after is None:  # read after the listener has started, so that no event is missed
                present = (await self.present.get(job_id)).value
            if job_id is not None and provisional:
                await held.enter_async_context(self.progress.following(job_id, listener))
            yield stream(listener, since if present is None else present.id, present)
