"""One open tab: handshakes, requests and their streams, acknowledgements, and the close.

    claimed ─► handshake ─► open ─► closing ─► ended
                  ▲           │
                  └───────────┘ a lost frame or connection

Two tasks run for each tab. `run_connection` makes handshakes and reads frames. `run_sender` stores vouchers and sends
messages. A voucher states the largest allowed charge and the acknowledged units, and is signed with the key of the tab.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
from anyio import to_thread

from common.api.tabs import MAX_TAB_FRAMES_PER_POST
from common.refusal import Refused
from common.tab.channel import LOST, WELCOME, Channel, ChannelBinding, Frame, OwnerHandshake
from common.tab.messages import (
    DirectEndpoint,
    OwnerMessage,
    TabAnswer,
    TabClose,
    TabClosing,
    TabDelta,
    TabFailure,
    Welcome,
    encode,
    read_provider_message,
)
from svc.account import Account
from svc.core.model_input import ModelInput, model_input
from svc.core.params_schema import check_parameters
from svc.core.tabs import OpenRequest, OwnerTab, TabFull, WrongAnswer
from svc.errors import (
    ApiError,
    ConnectionFailed,
    NotFound,
    OrderRefused,
    PostRefused,
    SvcError,
    TabEnded,
    TabFaulty,
    TabRequestFailed,
)
from svc.jobs import Jobs, require_posted
from svc.records import Model
from svc.tabs.files import StoredTab, TabFile
from svc.tabs.outcome import TabOutcome
from svc.wire.direct import direct_routes
from svc.wire.tabs import TabRoutes

_WELCOME_TIMEOUT_S: Final = 10.0
# While an answer is due, the client makes a new handshake after this time without a frame, to find lost frames.
_SILENCE_TIMEOUT_S: Final = 15.0
_FIRST_RECONNECT_PAUSE_S: Final = 0.1
_MAX_RECONNECT_PAUSE_S: Final = 5.0
_UNCLAIMED_RETRY_PAUSE_S: Final = 0.25  # before the next handshake of an unclaimed tab
_MAILBOX_FULL_PAUSE_S: Final = 0.2  # before a post to a full mailbox is retried
_MAX_POST_ATTEMPTS: Final = 25
_FRAMES_PER_POST: Final = min(MAX_TAB_FRAMES_PER_POST, 48)  # 48 full frames fit into the body of a post
_JOB_CHECK_INTERVAL_S: Final = 2.0  # between two reads of an unclaimed job
_UNCLAIMED_CODES: Final = frozenset({"not_claimed", "unknown_job"})
_UNITS_PER_RATE: Final = 10**6  # a rate is the price of this many units
_TAB_CLOSED_CODE: Final = "tab_closed"  # error code of a request that was not run, because the tab is closing


@attrs.frozen(slots=True)
class TabReply:
    """Answer to one request. `units` are added to the tab's charge. `cost` is their price, without fees."""

    id: int
    output: Any = attrs.field(repr=False)
    usage: dict[str, object]
    units: int
    cost: int


@attrs.define(eq=False)
class TabStream:
    """Answer that the provider is streaming. Iterate over its chunks, or wait for the whole `answer`."""

    request: OpenRequest = attrs.field(repr=False)
    _reply: TabReply | None = None
    _error: SvcError | None = None
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def id(self) -> int:
        """Number of the request in its tab."""
        return self.request.id

    async def __aiter__(self) -> AsyncIterator[dict[str, object]]:
        """Yield the chunks, which are events of the model's server. Raises TabEnded and TabRequestFailed.

        Text that the provider did not stream is in the last chunks.
        """
        at = 0
        while True:
            while at < len(self.request.chunks):
                at += 1
                yield self.request.chunks[at - 1]
            if self._error is not None:
                raise self._error
            if self._reply is not None:
                return
            await self._changed.wait()

    async def answer(self) -> TabReply:
        """Wait for the whole answer. Raises TabEnded and TabRequestFailed."""
        while self._reply is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._reply

    def notify(self, reply: TabReply | None = None, error: SvcError | None = None) -> None:
        self._reply, self._error = reply, error
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@attrs.frozen(slots=True)
class _Connection:
    """Channel to the provider, after a handshake."""

    channel: Channel
    routes: TabRoutes
    scope: anyio.CancelScope  # cancel to stop reading frames


@attrs.define(eq=False)
class Tab:
    """Open tab, from `client.tabs.open` or `client.tabs.resume`.

    `kept`: do not close the tab at the end of the block. `outcome` is set once the tab is settled and checked.
    """

    _account: Account
    _stored: StoredTab
    owner_tab: OwnerTab
    _jobs: Jobs
    _model: Model
    _on_faulty: Callable[[TabFile, str], None]
    kept: bool = False
    outcome: TabOutcome | None = None
    _streams: dict[int, TabStream] = attrs.field(factory=dict)
    _connection: _Connection | None = None
    _was_connected: bool = False
    _provider_closing: bool = False
    _close_requested: bool = False
    _is_sending: bool = False
    _close_sent: bool = False  # whether the current channel has sent the close
    _refusal_error: TabEnded | None = None  # raised for further requests
    _end_error: TabEnded | None = None  # set once the tab has ended
    _missed_ack_ids: tuple[int, ...] = ()  # answers whose acknowledgement the provider missed
    _direct_endpoint: DirectEndpoint | None = None
    _direct_failed: bool = False
    _job_checked_at: float = float("-inf")
    _stream_ends_at: float = float("inf")
    _changed: anyio.Event = attrs.field(factory=anyio.Event)

    @property
    def file(self) -> TabFile:
        return self._stored.file

    @property
    def id(self) -> str:
        """Id of the tab's job."""
        return self.file.id

    @property
    def provider(self) -> int:
        return self.file.provider

    @property
    def is_open(self) -> bool:
        """Return True while requests may be sent."""
        return (
            self._refusal_error is None
            and self._end_error is None
            and not (self._provider_closing or self._close_requested)
        )

    @property
    def is_direct(self) -> bool:
        """Return True while frames go directly to the provider's server, not to the mailbox."""
        return self._connection is not None and self._connection.routes.transport is not self._account.transport

    @property
    def open_requests(self) -> int:
        return len(self.owner_tab.open_requests)

    @property
    def acknowledged(self) -> int:
        """Units that this client has acknowledged, and that the provider may therefore charge."""
        return self.owner_tab.acknowledged

    def fits(self, units_in: int, units_out: int) -> bool:
        """Return True if a request with these units may be sent now."""
        return self.is_open and self.owner_tab.fits(units_in, units_out)

    def cost_of(self, units: int) -> int:
        """Return the price of this many units of output, rounded up."""
        return -(-units * self.file.rate_out // _UNITS_PER_RATE)

    async def wait_until_ready(self) -> None:
        """Wait for the first handshake. Raises TabEnded."""
        await self._wait_until(lambda: self._was_connected or self._end_error is not None)
        if self._end_error is not None:
            raise self._end_error

    async def request(self, input: ModelInput) -> TabStream:
        """Send a request, and return the stream of its answer. Raises TabEnded and OrderRefused.

        If the tab has its maximum number of open requests, wait until one of them ends.
        """
        await self._wait_until(lambda: not self.is_open or self.owner_tab.has_free_slot)
        stream = self.hold(input)
        self.release(stream)
        return stream

    def release(self, stream: TabStream) -> None:
        """Send a held request."""
        stream.request.is_held = False
        self._notify()

    def withdraw(self, stream: TabStream) -> None:
        """Drop a held request."""
        self._streams.pop(stream.id, None)
        self.owner_tab.remove_request(stream.id)

    def hold(self, input: ModelInput) -> TabStream:
        """Number a request without sending it, so that the caller can record it before `release` sends it."""
        body = model_input(input)
        try:
            check_parameters(self._model.svc.params_schema, body)
            if not self.is_open:
                raise self._end_error or self._refusal_error or self._closed_error()
            opened = self.owner_tab.add_request(body, held=True)
        except TabFull as full:
            raise TabEnded(self.id, "tab_full", str(full)) from None
        except Refused as refusal:
            if refusal.code == "message_too_large":
                raise TabEnded(self.id, "request_too_large", refusal.message) from None
            raise OrderRefused.because(refusal) from None
        stream = self._streams[opened.id] = TabStream(opened)
        return stream

    def keep(self) -> None:
        """Do not close the tab at the end of the block, so that `resume` can continue it."""
        self.kept = True

    async def send_close(self) -> None:
        """Acknowledge all answers so far, and request that the provider settles the tab."""
        self._close_requested = True
        self._notify()
        await self._wait_until(lambda: self._close_sent or self._provider_closing or self._end_error is not None)

    async def flush(self) -> None:
        """Wait until all messages are sent. Call this before disconnecting a tab that stays open."""
        await self._wait_until(lambda: self._end_error is not None or not (self._is_sending or self._has_work()))

    def finish(self, error: TabEnded) -> None:
        """End the tab: end all streams with `error`, and stop both tasks."""
        if self._end_error is None:
            self._end_error = self._refusal_error if isinstance(self._refusal_error, TabFaulty) else error
        for stream in self._streams.values():
            stream.notify(error=self._end_error)
        self._streams.clear()
        if self._connection is not None:
            self._connection.scope.cancel()
        self._notify()

    async def run_connection(self) -> None:
        """Connect the tab, and reconnect it until it has ended."""
        pause = _FIRST_RECONNECT_PAUSE_S
        while self._end_error is None:
            direct, started_at = self._uses_direct, anyio.current_time()
            try:
                async with self._open_routes() as routes:
                    await self._run_channel(routes)
                if self._provider_closing:
                    self._finish_ended()
            except (ApiError, ConnectionFailed, Refused) as error:
                if direct:
                    self._direct_failed = True
                    continue
                if isinstance(error, ApiError) and error.code in _UNCLAIMED_CODES:
                    await self._check_unclaimed()
                    pause = _UNCLAIMED_RETRY_PAUSE_S
                elif isinstance(error, ApiError) and not error.retryable and error.type != "internal_error":
                    self.finish(TabEnded(self.id, "tab_lost", error.message))
            if self._end_error is None and not (self._uses_direct and not direct):
                if anyio.current_time() - started_at > _MAX_RECONNECT_PAUSE_S:
                    pause = _FIRST_RECONNECT_PAUSE_S
                await anyio.sleep(pause)
                pause = min(2 * pause, _MAX_RECONNECT_PAUSE_S)

    async def run_sender(self) -> None:
        """Send waiting messages whenever the tab is connected."""
        while True:
            await self._wait_until(lambda: self._end_error is not None or self._has_work())
            if self._end_error is not None or self._connection is None:
                return
            self._is_sending = True
            await self._send_waiting(self._connection)
            self._is_sending = False
            self._notify()

    @property
    def _uses_direct(self) -> bool:
        return (
            self._direct_endpoint is not None and not self._direct_failed and self._account.settings.tab_direct != "off"
        )

    @asynccontextmanager
    async def _open_routes(self) -> AsyncIterator[TabRoutes]:
        if self._direct_endpoint is not None and self._uses_direct:
            async with direct_routes(
                self._direct_endpoint, self._account.settings.tab_direct, self._account.transport.clock
            ) as routes:
                yield routes
        else:
            yield TabRoutes(self._account.transport, self._account.authorised)

    async def _run_channel(self, routes: TabRoutes) -> None:
        """Make a handshake and read messages until the stream or the channel ends."""
        file = self.file
        binding = ChannelBinding(file.chain_id, file.job_registry, file.job_id)
        handshake = OwnerHandshake(binding, file.channel_key, file.box_key)
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _WELCOME_TIMEOUT_S) as scope:
                async with routes.frames(file.job_id) as frames:
                    await routes.post([(file.job_id, handshake.hello)])
                    async for raw in frames:
                        frame = Frame.parse(raw)
                        if frame.channel_id != handshake.channel_id:
                            continue
                        if frame.kind == LOST:
                            return
                        if self._connection is not None:
                            self._read_frame(self._connection.channel, frame)
                            scope.deadline = self._silence_deadline()
                        elif frame.kind == WELCOME:
                            self._receive_welcome(*handshake.finish(frame), routes, scope)
                            if self._uses_direct and not self.is_direct:
                                return
            if scope.cancelled_caught and self._end_error is None:
                raise ConnectionFailed(
                    f"tab {self.id}: the connection is lost, because no frame arrived in time or a post failed"
                )
        finally:
            self._connection = None
            self._notify()

    def _receive_welcome(self, channel: Channel, payload: bytes, routes: TabRoutes, scope: anyio.CancelScope) -> None:
        message = read_provider_message(payload)
        if not isinstance(message, Welcome):
            raise Refused("the provider's first message must be `welcome`", code="bad_frame")
        self._direct_endpoint = self._direct_endpoint or message.direct
        self._connection, self._close_sent = _Connection(channel, routes, scope), False
        # The mailbox ends its stream when the job ends. A provider's server may not, so limit its stream to the window.
        self._stream_ends_at = anyio.current_time() + self.file.window_s if self.is_direct else float("inf")
        scope.deadline = self._silence_deadline()
        try:
            self._missed_ack_ids = self.owner_tab.resume(message)
        except WrongAnswer as wrong:
            self._close_after_error(None, TabEnded(self.id, "tab_stuck", str(wrong)))
        self._was_connected = True
        self._notify()

    def _read_frame(self, channel: Channel, frame: Frame) -> None:
        raw = channel.open(frame)
        if raw is None:
            return
        try:
            message = read_provider_message(raw)
        except Refused as refusal:
            self._reject_answer(None, refusal.message)
            return
        if isinstance(message, TabClosing):
            self._provider_closing = True
        elif not isinstance(message, Welcome):
            self._handle_message(message)
        self._notify()

    def _handle_message(self, message: TabDelta | TabAnswer | TabFailure) -> None:
        try:
            request = self.owner_tab.receive_message(message)
        except WrongAnswer as wrong:
            self._reject_answer(message.id, str(wrong))
            return
        except TabFull as full:  # not the provider's fault, because its answers may be long
            self._close_after_error(message.id, TabEnded(self.id, "tab_full", str(full)))
            return
        stream = self._streams.get(message.id)
        if request is None or stream is None:
            return
        if isinstance(message, TabDelta):
            stream.notify()
            return
        del self._streams[message.id]
        if isinstance(message, TabFailure):
            closed = message.code == _TAB_CLOSED_CODE
            stream.notify(error=self._closed_error() if closed else TabRequestFailed(self.id, message.code))
        elif request.exchange is not None:
            units = self.owner_tab.exchange_units(message.units_in, message.units_out)
            stream.notify(TabReply(request.id, message.output, message.usage, units, self.cost_of(units)))

    def _reject_answer(self, request_id: int | None, reason: str) -> None:
        """Reject a wrong answer, close the tab, and exclude its provider from further tabs."""
        error = TabFaulty(self.id, "wrong_answer", f"provider {self.provider} broke the rules of tabs: {reason}")
        self._close_after_error(request_id, error)
        self._on_faulty(self.file, reason)

    def _close_after_error(self, request_id: int | None, error: TabEnded) -> None:
        """Close the tab, and end this request with `error`. New requests raise `error` or an earlier TabFaulty."""
        if not isinstance(self._refusal_error, TabFaulty):
            self._refusal_error = error
        self._close_requested = True
        self.owner_tab.remove_request(request_id)
        stream = self._streams.pop(request_id or 0, None)
        if stream is not None:
            stream.notify(error=error)
        self._notify()

    def _has_work(self) -> bool:
        if self._connection is None:
            return False
        return bool(self._missed_ack_ids) or self.owner_tab.has_work or (self._close_requested and not self._close_sent)

    async def _send_waiting(self, connection: _Connection) -> None:
        acknowledged = self.owner_tab.acknowledge()
        if self.owner_tab.reserve_ids() or acknowledged:
            self._stored.state = self.owner_tab.state()
            if self._stored.is_on_disk:
                await to_thread.run_sync(self._stored.write)
            if self._connection is not connection:
                return  # the next handshake reports the missing acknowledgements
        messages: list[OwnerMessage] = []
        ids, self._missed_ack_ids = self._missed_ack_ids + acknowledged, ()
        if ids:
            messages.append(self.owner_tab.ack_message(ids))
        messages += [self.owner_tab.request_message(request) for request in self.owner_tab.unsent()]
        closes = self._close_requested
        if closes:
            messages.append(TabClose())
        frames = [frame for message in messages for frame in connection.channel.seal(encode(message))]
        try:
            for at in range(0, len(frames), _FRAMES_PER_POST):
                await self._post_frames(connection.routes, frames[at : at + _FRAMES_PER_POST])
        except (ApiError, ConnectionFailed):
            connection.scope.cancel()
            await self._wait_until(lambda: self._connection is not connection)
            return
        connection.scope.deadline = self._silence_deadline()
        if closes:
            self._close_sent = True
            self._notify()

    def _silence_deadline(self) -> float:
        """Return the time at which the connection counts as lost, unless a frame arrives before."""
        if not self._streams:
            return self._stream_ends_at
        return min(self._stream_ends_at, anyio.current_time() + _SILENCE_TIMEOUT_S)

    async def _post_frames(self, routes: TabRoutes, frames: list[bytes]) -> None:
        """Post frames. A post to a full mailbox is safe to retry, because none of its frames was delivered."""
        for _ in range(_MAX_POST_ATTEMPTS):
            outcome = await routes.post([(self.file.job_id, frame) for frame in frames])
            if not outcome.refused:
                return
            if outcome.refused[0].code != "mailbox_full":
                break
            await anyio.sleep(_MAILBOX_FULL_PAUSE_S)
        raise ConnectionFailed(f"tab {self.id}: the frames were rejected ({outcome.refused[0].code})")

    async def _check_unclaimed(self) -> None:
        """End the tab if its job has ended or was not posted. Otherwise, keep waiting for the claim."""
        if self._was_connected:
            self._finish_ended()
            return
        if anyio.current_time() - self._job_checked_at < _JOB_CHECK_INTERVAL_S:
            return
        self._job_checked_at = anyio.current_time()
        try:
            job = await self._jobs.get(self.id)
        except NotFound:
            await self._finish_if_not_posted()
            return
        except (ApiError, ConnectionFailed):
            return
        if job.ended:
            self._finish_ended()

    async def _finish_if_not_posted(self) -> None:
        try:
            require_posted(await self._jobs.progress(self.id))
        except PostRefused as refused:
            self.finish(TabEnded(self.id, "tab_refused", f"the order of the tab was not posted ({refused.code})"))
        except (ApiError, ConnectionFailed):
            pass

    def _closed_error(self) -> TabEnded:
        return TabEnded(self.id, "tab_closing", "the tab is closing: open another tab")

    def _finish_ended(self) -> None:
        self.finish(TabEnded(self.id, "tab_ended", "the provider has ended the tab"))

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()
