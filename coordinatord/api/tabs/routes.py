"""Routes of tabs: post frames, and read frames as server-sent events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import pybase64

from common.api.fields import BYTES32, Base64, ListOf, NestedObject, body_field
from common.api.member_texts import MEMBER_TEXTS
from common.api.tabs import (
    MAX_TAB_FRAME_BYTES,
    MAX_TAB_FRAMES_PER_POST,
    MAX_TAB_POST_BYTES,
    TAB_FRAME_LIFETIME_S,
    TabPost,
    TabRefusal,
)
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.api.events.routes import STREAM_HEADERS, events_reply
from coordinatord.api.tabs.mailbox import TabMailbox
from coordinatord.api.tabs.parties import PartyRefusal, is_owner_side, party_refusal
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow
from coordinatord.http import responses
from coordinatord.http.caller_limits import TokenBuckets
from coordinatord.http.responses import Response
from coordinatord.http.routing import INDEX_REPLIES, Body, Parameter, Reply, Request, Route, malformed_replies
from coordinatord.http.streaming import StreamedResponse

TAB_FRAMES_PER_S: Final = 2_000  # for each tab and direction, in each process
TAB_BYTES_PER_S: Final = 4 << 20
WALLET_FRAMES_PER_S: Final = 10_000
WALLET_BYTES_PER_S: Final = 16 << 20
_RATE_LIMIT_BURST_S: Final = 2

_MESSAGES_BY_CODE: Final = {
    "unknown_job": "the index has no such job",
    "not_claimed": "the job is not claimed, or has ended",
    "not_party": "the session belongs neither to the job's owner nor to its provider",
}


@attrs.frozen(slots=True)
class TabMessage:
    job_id: bytes = body_field(BYTES32)
    body: bytes = body_field(
        Base64(MAX_TAB_FRAME_BYTES), "frame for the other side of the tab, in base64", example="AwABAgMEBQYHqg=="
    )


@attrs.frozen(slots=True)
class TabMessages:
    messages: tuple[TabMessage, ...] = body_field(
        ListOf(NestedObject(TabMessage), MAX_TAB_FRAMES_PER_POST),
        f"1 to {MAX_TAB_FRAMES_PER_POST} frames of any tabs of this session, in order within each tab",
    )


class FrameRates:
    """Limits on frames and bytes per second. Each name has separate token buckets."""

    def __init__(self, frames_per_s: int, bytes_per_s: int) -> None:
        self._frames = TokenBuckets(frames_per_s, frames_per_s * _RATE_LIMIT_BURST_S)
        self._bytes = TokenBuckets(bytes_per_s, bytes_per_s * _RATE_LIMIT_BURST_S)

    def take_or_get_wait_s(self, name: str, frames: int, size: int) -> float:
        """Take the tokens of a post and return 0.0, or return the seconds until there are enough tokens."""
        return self._frames.take_or_get_wait_s(name, frames) or self._bytes.take_or_get_wait_s(name, size)


@attrs.frozen(slots=True)
class TabRoutes:
    mailbox: TabMailbox
    connection_limits: ConnectionLimits
    tab_rates: FrameRates = attrs.field(factory=lambda: FrameRates(TAB_FRAMES_PER_S, TAB_BYTES_PER_S))
    wallet_rates: FrameRates = attrs.field(factory=lambda: FrameRates(WALLET_FRAMES_PER_S, WALLET_BYTES_PER_S))

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v1/tabs/messages",
                id="postTabFrames",
                tag="Tabs",
                about="Send frames to the other side of tabs",
                details=(
                    "A session with role `provider` sends to the owners, any other session to the providers. A"
                    f" frame waits for its reader for {TAB_FRAME_LIFETIME_S} seconds. Send the next post for a tab"
                    " after the answer to the previous one, because concurrent posts may be reordered."
                ),
                handler=self.post_frames,
                body=Body.of(TabMessages, MAX_TAB_POST_BYTES),
                session=True,
                replies=(
                    Reply(200, shape=TabPost, about="The tabs whose frames were refused"),
                    *malformed_replies(),
                    Reply(401, "invalid_session"),
                    Reply(429, "busy"),
                    *INDEX_REPLIES,
                ),
            ),
            Route(
                method="GET",
                path="/v1/tabs/{job_id}/messages",
                id="readTabFrames",
                tag="Tabs",
                about="Read the frames that the other side of a tab sends, as server-sent events",
                details=(
                    "Each event `frame` has the base64 of one frame as `data`. A frame is sent once and then deleted."
                    " The event `end` comes when the job has ended. A newer stream of the same side ends this one. A"
                    " comment is sent about every 20 seconds."
                ),
                handler=self.read_frames,
                segments={"job_id": Parameter(BYTES32, example=MEMBER_TEXTS["job_id"].example)},
                session=True,
                replies=(
                    events_reply("The frames, until the job ends"),
                    *malformed_replies(),
                    Reply(401, "invalid_session"),
                    Reply(403, "not_party"),
                    Reply(404, "unknown_job"),
                    Reply(409, "not_claimed"),
                    Reply(429, "busy"),
                    *INDEX_REPLIES,
                ),
            ),
        ]

    async def post_frames(self, request: Request) -> Response:
        body: TabMessages = request.body
        if not body.messages:
            raise Refused(f"messages must have 1 to {MAX_TAB_FRAMES_PER_POST} items", "messages")
        frames = [(message.job_id, pybase64.b64encode(message.body)) for message in body.messages]
        session = _require_session(request)
        size = sum(len(frame) for _, frame in frames)
        if wait := self.wallet_rates.take_or_get_wait_s(session.address.hex(), len(frames), size):
            raise Retryable(
                "busy", "this wallet sends too many tab frames; send them again later", retry_after=max(1, round(wait))
            )
        side = is_owner_side(session)

        def is_over_rate(job_id: bytes, frames: int, size: int) -> bool:
            return self.tab_rates.take_or_get_wait_s(f"{job_id.hex()} {side}", frames, size) > 0

        refused = await self.mailbox.store_frames(session, frames, is_over_rate)
        return responses.ok(TabPost([TabRefusal(hex_of(job_id), code) for job_id, code in refused.items()]))

    async def read_frames(self, request: Request) -> Response | StreamedResponse:
        session, job_id = _require_session(request), request.path["job_id"]
        parties = await self.mailbox.parties.read_parties([job_id])
        if (refusal := party_refusal(parties[job_id], session)) is not None:
            return _refusal_response(refusal)
        opened = partial(self._open_stream, request.caller, job_id, is_owner_side(session))
        return StreamedResponse(200, STREAM_HEADERS, None, opened)

    @asynccontextmanager
    async def _open_stream(self, caller: str, job_id: bytes, to_owner: bool) -> AsyncIterator[AsyncIterator[bytes]]:
        with self.connection_limits.count_connection(caller, "stream"):
            async with self.mailbox.open_reader(job_id, to_owner=to_owner) as stream:
                yield stream


def _require_session(request: Request) -> SessionRow:
    if request.session is None:
        raise AssertionError("the route requires a session")
    return request.session


def _refusal_response(refusal: PartyRefusal) -> Response:
    message = _MESSAGES_BY_CODE[refusal]
    if refusal == "unknown_job":
        return responses.error(404, "not_found", message, param="job_id", code=refusal)
    if refusal == "not_party":
        return responses.error(403, "authentication_error", message, param="job_id", code=refusal)
    return responses.error(409, "invalid_request_error", message, param="job_id", code=refusal)
