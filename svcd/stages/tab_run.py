"""Run the requests of one tab until the tab closes. The output is the tab's transcript.

frames ─► channel end ─► ledger ─► requests, each in a turn of the model ─► chunks, answers ─► frames

`svcd.tabs.ledger` decides which requests may run and what is charged. Each answer is written to the journal before it
is sent, so a restart continues the tab and repeats no finished request.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from common.bundle import is_bundle
from common.pricing.units import DEFAULT_OUTPUT_TOKENS, units_of
from common.refusal import Refused
from common.strict_json import may_have_more_values
from common.tab.channel import MAX_MESSAGE_BYTES
from common.tab.messages import (
    TabAck,
    TabAnswer,
    TabClose,
    TabClosing,
    TabFailure,
    TabRequest,
    Welcome,
    encode,
    read_owner_message,
)
from common.tab.terms import IDLE_TIMEOUT_S, Exchange, is_tab
from common.tab.transcript import Transcript
from svcd.backends.backend import OnDelta
from svcd.backends.breaker import Breaker
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.held_job import ClaimedJob
from svcd.journal.work import ModelWork, TabWork, WorkOutput
from svcd.payload.modality import modality_for
from svcd.payload.sealable import to_sealable
from svcd.stages.drain import Drain
from svcd.tabs.channel_end import ChannelEnd, Route
from svcd.tabs.entries import TabEntries
from svcd.tabs.ledger import MAX_ANSWER_VALUES, AdmittedRequest, TabLedger
from svcd.tabs.open_tabs import OpenTab
from svcd.tabs.outgoing import OutgoingQueue
from svcd.tabs.rate_limit import ByteRateLimiter
from svcd.tabs.service import TabService

log = structlog.get_logger(__name__)

CLOSING_TIMEOUT_S: Final = 2.0  # for the last acks
_MAX_FAILED_STREAMS: Final = 8  # the tab closes after this many uncharged failures of partly sent answers
_MAX_CONCURRENT_REPLIES: Final = 4  # `welcome` and `lost` frames that are sent at the same time
_REPLY_TIMEOUT_S: Final = 10.0
_OUTPUT_DEPTH: Final = 3  # nesting depth at which the transcript contains the output of an exchange

# Failures because of the deadline or a stop of svcd. They are not stored, so that the request may run again.
_NOT_RUN_REASONS: Final = frozenset({"deadline_wait", "sla_abandon", "unservable"})


# Function that runs a request when its turn comes. The arguments are the work, a callback for chunks, and the deadline
# that orders the turns.
RunRequest = Callable[[ModelWork, OnDelta, float], Awaitable[WorkOutput]]


class TabRun:
    """Run of one tab. No further request starts while `parallel` answers wait for an ack."""

    def __init__(
        self,
        *,
        held: ClaimedJob,
        work: TabWork,
        parallel: int,
        service: TabService,
        entries: TabEntries,
        run_request: RunRequest,
        breaker: Breaker,
    ) -> None:
        self._held = held
        self._work = work
        self._service = service
        self._entries = entries
        self._run_request = run_request
        self._breaker = breaker
        self._ledger = TabLedger(held.job, work.terms.delegation.voucher_key, service.domains, parallel)
        self._outgoing = OutgoingQueue()
        self._closes_at = work.deadline - CLOSING_TIMEOUT_S
        self._idle_since = trio.current_time()
        self._closing_reason: str | None = None  # once set, no request starts
        self._closes_at_once = False  # do not wait for running requests
        self._requests: trio.Nursery | None = None
        self._sending: trio.CancelScope | None = None
        self._reply_count = 0
        self._failed_streams = 0
        self._changed = trio.Event()

    async def run(self, drain: Drain) -> WorkOutput:
        """Run the tab until it closes, and return its transcript."""
        job = self._held.job
        if await self._entries.restore(self._ledger):
            log.info("tab resumed", job=self._held.hex_id, acknowledged=len(self._ledger.acknowledged))
        with self._service.tabs.open_tab(job.job_id, job.owner, self._held.model) as tab:
            if tab is None:
                self._closing_reason = "tabs_full"
            else:
                log.info("tab opened", job=self._held.hex_id, seconds=self._seconds_left())
                try:
                    await self._serve(tab, drain)
                except Exception:  # the tab still settles the acknowledged answers
                    log.exception("tab failed unexpectedly", job=self._held.hex_id)
                    self._closing_reason = "internal_error"
        return self._build_output(self._closing_reason or "deadline")

    async def _serve(self, tab: OpenTab, drain: Drain) -> None:
        end = self._service.build_channel_end(tab, self._work.terms, lambda: encode(self._build_welcome(tab)))
        async with trio.open_nursery() as connection_tasks:
            self._service.start_mailbox_reader(connection_tasks, tab)
            connection_tasks.start_soon(self._receive, tab, end, connection_tasks)
            connection_tasks.start_soon(self._send, tab, end)
            async with trio.open_nursery() as self._requests:
                self._requests.start_soon(self._watch_drain, drain)
                await self._wait_until_closing()
                self._requests.cancel_scope.cancel()
            await self._finish(end)
            connection_tasks.cancel_scope.cancel()

    # --- closing --------------------------------------------------------------------------------------------

    async def _watch_drain(self, drain: Drain) -> None:
        await drain.begun_event.wait()
        self._close("drain")

    def _close(self, reason: str, *, at_once: bool = False) -> None:
        self._closing_reason = self._closing_reason or reason
        self._closes_at_once = self._closes_at_once or at_once
        self._notify()

    async def _wait_until_closing(self) -> None:
        while True:
            now = trio.current_time()
            if now >= self._closes_at:
                self._close("deadline", at_once=True)
            elif (limit := self._ledger.limit_reached) is not None:
                self._close(limit)
            elif now >= self._idle_deadline(now):
                self._close("idle")
            if self._closing_reason is not None and (self._closes_at_once or not self._ledger.running):
                return
            with trio.move_on_at(min(self._closes_at, self._idle_deadline(now))):
                await self._changed.wait()

    def _idle_deadline(self, now: float) -> float:
        """Return the time at which an idle tab closes. A request that waits for acks does not count as activity."""
        pending_claim = self._held.pending_claim
        if self._ledger.running or (pending_claim is not None and not pending_claim.is_decided):
            self._idle_since = now
        return self._idle_since + IDLE_TIMEOUT_S

    async def _finish(self, end: ChannelEnd) -> None:
        """Send `closing` to the owner, and wait for the last acks."""
        ledger = self._ledger
        for admitted in (*ledger.running.values(), *ledger.take_waiting()):
            self._outgoing.end(admitted.id, TabFailure(admitted.id, "tab_closed"))
        self._outgoing.put(TabClosing(self._closing_reason or "deadline"))
        self._notify()
        with trio.move_on_after(CLOSING_TIMEOUT_S):
            while self._ledger.unacknowledged or not self._is_flushed(end):
                await self._changed.wait()

    def _is_flushed(self, end: ChannelEnd) -> bool:
        return self._sending is None and (
            end.newest_channel is None or self._outgoing.next_group_at(trio.current_time()) is None
        )

    def _build_output(self, reason: str) -> WorkOutput:
        ledger = self._ledger
        transcript = Transcript(reason, tuple(ledger.acknowledged), ledger.voucher, self._work.terms.delegation)
        log.info(
            "tab closed",
            job=self._held.hex_id,
            reason=reason,
            acknowledged=len(ledger.acknowledged),
            unacknowledged=len(ledger.unacknowledged),
            units=ledger.charge,
        )
        usage: dict[str, object] = {"requests": len(ledger.acknowledged), **attrs.asdict(ledger.totals)}
        return WorkOutput(transcript.output(), ledger.charge, usage)

    # --- from the owner -------------------------------------------------------------------------------------

    async def _receive(self, tab: OpenTab, end: ChannelEnd, connection_tasks: trio.Nursery) -> None:
        rate_limiter = ByteRateLimiter()
        async for route, frame in tab.inbox:
            await rate_limiter.spend(len(frame))
            received = end.receive(route, frame, trio.current_time())
            if received.reply is not None and self._reply_count < _MAX_CONCURRENT_REPLIES:
                connection_tasks.start_soon(self._reply, tab, route, received.reply)
            if received.is_first:
                self._outgoing.restart()
                if self._sending is not None:
                    self._sending.cancel()
            if received.message is not None:
                await self._handle_message(received.message)
            self._notify()
            while self._outgoing.is_full:
                await self._changed.wait()

    async def _reply(self, tab: OpenTab, route: Route, frame: bytes) -> None:
        self._reply_count += 1
        try:
            with trio.move_on_after(_REPLY_TIMEOUT_S):
                await self._service.send(tab, route, [frame])
        finally:
            self._reply_count -= 1

    async def _handle_message(self, raw: bytes) -> None:
        try:
            message = read_owner_message(raw)
            match message:
                case TabRequest():
                    self._handle_request(message)
                case TabAck():
                    self._ledger.acknowledge(message)
                    await self._entries.record_ack(message)
                case TabClose():
                    self._close("close", at_once=True)
        except Refused as refusal:
            log.debug("message refused", job=self._held.hex_id, code=refusal.code, reason=refusal.message)
        self._start_requests()

    def _handle_request(self, request: TabRequest) -> None:
        match self._ledger.request_state(request.id):
            case "open":
                self._ledger.renew_voucher(request.voucher)
            case "answered":
                self._ledger.renew_voucher(request.voucher)
                self._outgoing.put(_build_tab_answer(self._ledger.unacknowledged[request.id]))
            case "failed":
                self._outgoing.put(TabFailure(request.id, self._ledger.failures[request.id]))
            case "acknowledged":
                self._outgoing.put(TabFailure(request.id, "already_acknowledged"))
            case "new":
                try:
                    self._admit(request)
                except (Refused, WorkFailed) as refusal:
                    self._outgoing.put(TabFailure(request.id, _error_code(refusal)))
                    metrics.tab_requests.labels("refused").inc()

    def _admit(self, request: TabRequest) -> None:
        if self._closing_reason is not None:
            raise Refused("the tab is closing; open another tab", code="tab_closed")
        if is_bundle(request.input) or is_tab(request.input):
            raise Refused("a request of a tab must not be a bundle or a tab", code="malformed_request")
        if modality_for(self._work.serves, request.input, DEFAULT_OUTPUT_TOKENS) != "text":
            raise WorkFailed("media_input_refused", "a request of a tab must be text")
        self._ledger.admit(request, units_of("text", request.input))

    # --- requests -------------------------------------------------------------------------------------------

    def _start_requests(self) -> None:
        while self._closing_reason is None and self._requests is not None:
            admitted = self._ledger.start_next()
            if admitted is None:
                return
            if self._ledger.is_covered:
                self._requests.start_soon(self._run_admitted, admitted)
            else:
                self._fail_request(admitted, "over_allowance", ran=False)

    async def _run_admitted(self, admitted: AdmittedRequest) -> None:

        # Give the request the same priority as a job that is claimed now and has the same window.
        turn_deadline = trio.current_time() + self._held.job.sla_secs
        try:
            await self._breaker.wait_closed()
            exchange = await self._run_exchange(admitted, turn_deadline)
        except (WorkFailed, Refused) as failure:
            code = _error_code(failure)
            log.info("request failed", job=self._held.hex_id, request=admitted.id, reason=code)
            if code not in _NOT_RUN_REASONS:
                await self._entries.record_failure(admitted.id, code)
            self._fail_request(admitted, code, ran=code not in _NOT_RUN_REASONS)
        else:
            await self._entries.record_answer(exchange)
            self._ledger.record_answer(exchange)
            self._outgoing.end(exchange.id, _build_tab_answer(exchange))
            metrics.tab_requests.labels("answered").inc()
        self._idle_since = trio.current_time()
        self._start_requests()
        self._notify()

    async def _run_exchange(self, admitted: AdmittedRequest, turn_deadline: float) -> Exchange:
        """Run the request. Raise `WorkFailed` or `Refused` for every failure."""
        work = ModelWork(
            job_id=self._held.job.job_id,
            model=self._held.model,
            modality="text",
            input=admitted.input,
            units_in=admitted.units.units_in,
            units_out=admitted.units.units_out,
            deadline=self._closes_at,
            item_number=admitted.id,
        )

        def queue_chunk(chunk: dict[str, object]) -> None:
            self._outgoing.add_chunk(admitted.id, chunk)
            self._notify()

        try:
            output = await self._run_request(work, queue_chunk, turn_deadline)
            answer, usage = to_sealable(output.output, _OUTPUT_DEPTH), to_sealable(output.usage, _OUTPUT_DEPTH)
            exchange = _build_exchange(admitted, answer, usage, output.completion_tok)
            encoded = encode(_build_tab_answer(exchange))
            too_large = len(encoded) > MAX_MESSAGE_BYTES or may_have_more_values(encoded, MAX_ANSWER_VALUES)
        except WorkFailed:
            raise
        except Refused as refusal:
            raise WorkFailed("backend_error", refusal.message) from None
        except Exception as bug:
            log.exception("request failed unexpectedly", job=self._held.hex_id, request=admitted.id)
            raise WorkFailed("internal_error", type(bug).__name__) from None
        if too_large:
            limits = f"{MAX_MESSAGE_BYTES} bytes and {MAX_ANSWER_VALUES} JSON values"
            raise Refused(f"an answer may have at most {limits}", code="answer_too_large")
        return exchange

    def _fail_request(self, admitted: AdmittedRequest, code: str, *, ran: bool) -> None:
        self._ledger.record_failure(admitted.id, code, ran=ran)
        if ran and self._outgoing.has_chunks(admitted.id):
            self._failed_streams += 1
            if self._failed_streams >= _MAX_FAILED_STREAMS:
                self._close("failures")
        self._outgoing.end(admitted.id, TabFailure(admitted.id, code))
        metrics.tab_requests.labels("failed").inc()

    # --- to the owner ---------------------------------------------------------------------------------------

    def _build_welcome(self, tab: OpenTab) -> Welcome:
        ledger = self._ledger
        return Welcome(
            max_parallel=ledger.max_parallel,
            seconds_left=self._seconds_left(),
            voucher_number=0 if ledger.voucher is None else ledger.voucher.number,
            acknowledged=ledger.charge,
            answered_ids=tuple(ledger.unacknowledged),
            direct=self._service.endpoint_of(tab),
        )

    async def _send(self, tab: OpenTab, end: ChannelEnd) -> None:
        while True:
            routed = end.current_channel if self._closing_reason is None else end.newest_channel
            now = trio.current_time()
            due = None if routed is None else self._outgoing.next_group_at(now)
            if routed is None or due is None:
                self._outgoing.drop_messages()  # the owner repeats its requests on the next channel
                await self._changed.wait()
            elif due > now:
                with trio.move_on_at(due):
                    await self._changed.wait()
            else:
                with trio.CancelScope() as self._sending:
                    frames: list[bytes] = []
                    for message in self._outgoing.take():
                        frames += routed.channel.seal(encode(message))
                        await trio.lowlevel.checkpoint()  # other tasks run here, because an answer may have a megabyte
                    await self._service.send(tab, routed.route, frames)
                self._sending = None
                self._notify()

    def _seconds_left(self) -> int:
        return max(0, int(self._closes_at - trio.current_time()))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _build_exchange(admitted: AdmittedRequest, output: object, usage: object, completion_tok: int) -> Exchange:
    return Exchange(
        admitted.id,
        admitted.digest,
        output,
        usage if isinstance(usage, dict) else {},
        admitted.units.units_in,
        min(completion_tok, admitted.units.units_out),
    )


def _error_code(failure: WorkFailed | Refused) -> str:
    return failure.reason if isinstance(failure, WorkFailed) else failure.code or "malformed_request"


def _build_tab_answer(exchange: Exchange) -> TabAnswer:
    return TabAnswer(exchange.id, exchange.output, exchange.usage, exchange.units_in, exchange.units_out)
