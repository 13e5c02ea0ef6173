"""Routes that stream all events, or the events of one job, as server-sent events."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import attrs

from common.api import limits, worked_order
from common.api.events import EventsReset, JobEvent
from common.api.fields import ADDRESS, BYTES32, Choice, QueryUint, Text
from common.api.member_texts import MEMBER_TEXTS, NO_EXAMPLE
from common.api.progress import ProgressStep, ProvisionalJob
from common.api.states import JobState
from common.scalars import hex_of
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.api.events.events_sql import EventFilter, LoggedEvent
from coordinatord.api.events.hub import EventHub
from coordinatord.api.events.listeners import stream_events
from coordinatord.api.events.progress_hub import ProgressHub
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NoSuchObject
from coordinatord.http import responses
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.responses import Headers, Response
from coordinatord.http.routing import INDEX_REPLIES, Parameter, Reply, Request, Route, malformed_replies
from coordinatord.http.streaming import StreamedResponse
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead

RESPOND_ASYNC: Final = "respond-async"
PREFER_HEADERS: Final = {
    "prefer": Parameter(
        Text(limits.MAX_HEADER_VALUE_BYTES),
        f"`{RESPOND_ASYNC}`: answer 202 once the request is stored, before it is mined",
    )
}
_OPTIONAL_STEP_FIELDS: Final = [name for name in ProgressStep.__struct_fields__ if name not in ("op", "rests_on")]
STORED_REPLY: Final = Reply(
    202,
    shape=ProvisionalJob,
    about="With `prefer: respond-async`: the request is stored and will be sent. Follow the job's progress",
    example={"status": "queued", "steps": [{"op": "post", **dict.fromkeys(_OPTIONAL_STEP_FIELDS, NO_EXAMPLE)}]},
    headers=("preference-applied", "location"),
)
REQUESTS_PER_REPLAY_PIECE: Final = 4  # each piece of a replay counts as this many requests of the caller


async def stored_response(progress: ProgressHub, job_id: bytes) -> Response:
    """Return the 202 response to a caller that prefers `respond-async` and whose op is in the outbox."""
    found = await progress.read_progress(job_id)
    if found is None:  # refused and deleted already; resubmitting returns the reason
        raise Retryable("not_ready", "the job's progress is not known yet; send the same request again", retry_after=1)
    location = f"/v1/jobs/{hex_of(job_id)}/progress"
    headers = ((b"preference-applied", RESPOND_ASYNC.encode()), (b"location", location.encode()))
    return responses.ok(found, status=202, headers=headers)


EVENT_STREAM: Final = "text/event-stream"
STREAM_HEADERS: Final[Headers] = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
)
LAST_EVENT_ID: Final = "last-event-id"
_RESUME_PARAMETER: Final = Parameter(
    QueryUint(63), "id of the last event received: later events come first, or `reset` if some are missing"
)
RESUME_QUERY: Final = {"after": _RESUME_PARAMETER}
RESUME_HEADERS: Final = {
    LAST_EVENT_ID: attrs.evolve(_RESUME_PARAMETER, about="`after` as browsers send it; takes precedence over the query")
}
_STATES: Final = {state.name.capitalize(): state for state in JobState}
_EVENT_SHAPES: Final = (JobEvent, EventsReset)
_PROVIDER_EXAMPLE: Final = {"wallet": MEMBER_TEXTS["operator"].example, "provider_id": "2"}
_RUN_AHEAD_EXAMPLE: Final = {
    "steps": [
        {"op": "post", "rests_on": "block", "tx_hash": worked_order.TX_HASH, "block": "41"},
        {"op": "claim", "rests_on": "broadcast", "tx_hash": worked_order.TX_HASH, **_PROVIDER_EXAMPLE},
        {
            "op": "settle",
            "rests_on": "stored",
            **_PROVIDER_EXAMPLE,
            "result_cid": worked_order.RESULT_CID,
            "completion_tok": "14",
        },
    ]
}


def resume_position(request: Request) -> int | None:
    """Return the id of the event after which the caller continues, or None."""
    after: int | None = request.headers.get(LAST_EVENT_ID, request.query.get("after"))
    return after


def events_reply(about: str, *shapes: object) -> Reply:
    return Reply(200, media=(EVENT_STREAM,), lines=shapes, about=about)


@attrs.frozen(slots=True)
class EventRoutes:
    hub: EventHub
    connection_limits: ConnectionLimits
    current_events: BatchedReads[bytes, IndexRead[LoggedEvent]]
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
                    "Each message has an `id`, the `event` and a JSON object as `data`. All filters are optional."
                    " `taken_back` repeats an event that a reorganisation undid. `reset` means that events are missing:"
                    " read the jobs that you follow again. A comment is sent about every 20 seconds. An event is a"
                    " hint, not a proof: read the job."
                ),
                handler=self.stream_all,
                query={
                    "model": Parameter(QueryUint(32), "only events of jobs of the model with this id"),
                    "provider": Parameter(
                        QueryUint(32), "only events of jobs that this provider claimed, or that are designated to it"
                    ),
                    "owner": Parameter(ADDRESS, "only events of jobs that this wallet owns"),
                    "state": Parameter(Choice(tuple(_STATES)), "only events that leave a job in this state"),
                    **RESUME_QUERY,
                },
                headers=RESUME_HEADERS,
                replies=(
                    events_reply("The events, until the caller disconnects", *_EVENT_SHAPES),
                    *malformed_replies(),
                    Reply(429, "busy"),
                    *INDEX_REPLIES,
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
                    "Like GET /evm/events, for one job. The first message is the job's current state at the indexed"
                    " block. A caller that reconnects with an id receives the events after this id instead."
                ),
                handler=self.stream_job,
                segments={"id": Parameter(BYTES32, "id of the job", example=MEMBER_TEXTS["job_id"].example)},
                query={
                    "provisional": Parameter(
                        Choice(("0", "1")),
                        "`1`: also send the answer of GET /v1/jobs/{id}/progress as the event `provisional`, at the"
                        " start and after each change; works as soon as the post is stored",
                    ),
                    **RESUME_QUERY,
                },
                headers=RESUME_HEADERS,
                replies=(
                    events_reply("The job's events", *_EVENT_SHAPES, ProvisionalJob),
                    *malformed_replies(),
                    Reply(404),
                    Reply(429, "busy"),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
            ),
            Route(
                method="GET",
                path="/v1/jobs/{id}/progress",
                id="getJobProgress",
                tag="Jobs",
                about="Read a job with its ops that are not mined yet",
                details=(
                    "Each step names its evidence. A stored settle names the result, so the client can fetch, open and"
                    " use the result at once. The answer is provisional until the settle is mined, and a later answer"
                    " shows if the settle failed. Check the job later, because only the chain is final."
                ),
                handler=self.read_progress,
                segments={"id": Parameter(BYTES32, "id of the job", example=MEMBER_TEXTS["job_id"].example)},
                replies=(
                    Reply(200, shape=ProvisionalJob, about="The job's progress", example=_RUN_AHEAD_EXAMPLE),
                    *malformed_replies(),
                    Reply(404),
                    *INDEX_REPLIES,
                ),
                index_backed=True,
                changes_between_blocks=True,
            ),
        ]

    async def stream_all(self, request: Request) -> StreamedResponse:
        query = request.query
        event_filter = EventFilter(
            owner=query.get("owner"),
            model_id=query.get("model"),
            provider_id=query.get("provider"),
            state=_STATES.get(query.get("state", "")),
        )
        return self._stream_response(request, event_filter)

    async def stream_job(self, request: Request) -> Response | StreamedResponse:
        job_id = request.path["id"]
        provisional = request.query.get("provisional") == "1"
        known = (
            await self.progress.read_progress(job_id) if provisional else (await self.current_events.get(job_id)).value
        )
        if known is None:
            return responses.not_found(NoSuchObject("job"))
        return self._stream_response(request, EventFilter(job_id=job_id), provisional=provisional)

    async def read_progress(self, request: Request) -> Response:
        progress = await self.progress.read_progress(request.path["id"])
        return responses.not_found(NoSuchObject("job")) if progress is None else responses.ok(progress)

    def _stream_response(
        self, request: Request, event_filter: EventFilter, *, provisional: bool = False
    ) -> StreamedResponse:
        return StreamedResponse(
            200, STREAM_HEADERS, None, partial(self._open_stream, request, event_filter, provisional)
        )

    @asynccontextmanager
    async def _open_stream(
        self, request: Request, event_filter: EventFilter, provisional: bool
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with AsyncExitStack() as held:
            held.enter_context(self.connection_limits.count_connection(request.caller, "stream"))
            after = resume_position(request)
            turn = partial(self.buckets.wait_and_take, request.caller, REQUESTS_PER_REPLAY_PIECE)
            listener, since = await held.enter_async_context(self.hub.follow(event_filter, after, turn))
            current, job_id = None, event_filter.job_id
            if job_id is not None and after is None:  # read after the listener has started, so that no event is missed
                current = (await self.current_events.get(job_id)).value
            read_progress = None
            if job_id is not None and provisional:
                read_progress = held.enter_context(self.progress.follow(job_id, listener))
            yield stream_events(listener, since if current is None else current.id, current, read_progress)
