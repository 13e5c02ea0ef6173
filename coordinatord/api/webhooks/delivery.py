"""Delivery of webhooks. A process takes a turn of an endpoint, posts the endpoint's due messages, and schedules
retries.

    turn    one process has the endpoint for a minute
      post  send a few messages at a time; stop after the first failure
      end   delivered messages are removed, failed ones are due again later, in one transaction

If the result of a turn could not be stored, its messages are posted again under the same ids. New, slow and failing
endpoints share a quarter of the concurrent turns, so that they do not delay endpoints that answered quickly in their
last turn.
"""

import random
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import attrs
import structlog
from anyio.abc import TaskGroup

from common.daemon.secrets import Secret
from common.webhooks import signed_headers
from coordinatord.api.webhooks import endpoints_sql, turns_sql
from coordinatord.api.webhooks.destinations import open_destinations
from coordinatord.api.webhooks.endpoints import SealedSecrets
from coordinatord.api.webhooks.endpoints_sql import DisabledBecause
from coordinatord.api.webhooks.fanout import FanOut
from coordinatord.api.webhooks.turns_sql import DueMessage, EndpointTurn, TurnResult
from coordinatord.base.clock import Clock, read_http_date, system_clock
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import HttpClient, NoResponse
from coordinatord.base.wake import Wake
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.notices import BATCH_MOVED, INDEX_MOVED, Notices

log = structlog.get_logger(__name__)

# Seconds to wait after each failed attempt, as Standard Webhooks recommends. The waits add up to about 32 hours.
RETRY_DELAYS_S: Final = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0)
MAX_JITTER: Final = 0.2  # largest random addition to a delay, as a share of the delay
DISABLE_AFTER_S: Final = 86_400.0  # time without a success after which an endpoint is disabled
MAX_RETRY_AFTER_S: Final = 86_400.0
MIN_FAILURE_PAUSE_S: Final = 5.0  # between two turns of a failing endpoint
MAX_FAILURE_PAUSE_S: Final = 300.0
TURN_LEASE_S: Final = 60.0
# Seconds from the start of a turn, after which the turn starts no further post. An attempt takes at most 15 s, so the
# turn ends within its lease.
LATEST_POST_START_S: Final = 20.0
MAX_TURN_MESSAGES: Final = 64
MAX_CONCURRENT_POSTS_PER_ENDPOINT: Final = 8
MAX_QUICK_ANSWER_S: Final = 1.0
# Concurrent turns of one process: of endpoints that answered their last turn quickly, and of all others.
MAX_QUICK_TURNS: Final = 48
MAX_OTHER_TURNS: Final = 16
POLL_INTERVAL_S: Final = 1.0  # between two queries for due endpoints, if no notice arrives
SECRET_RETRY_PAUSE_S: Final = 300.0
METRICS_INTERVAL_S: Final = 15.0
_GONE_STATUS: Final = 410


@attrs.frozen(slots=True)
class PostAttempt:
    """Attempt to post a message. `status` is None if there was no response."""

    status: int | None
    duration_s: float
    retry_after_s: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def retry_delay_after(attempts: int, retry_after: float | None) -> float | None:
    """Return the seconds to wait after this many attempts, or None when no attempts are left."""
    if attempts > len(RETRY_DELAYS_S):
        return None
    delay = RETRY_DELAYS_S[attempts - 1] * (1 + random.uniform(0, MAX_JITTER))  # noqa: S311 - spreads load
    return max(delay, retry_after or 0.0)


def read_retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds of a `Retry-After` header, or None if it is neither a number nor a date."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        seconds = float(text)
    else:
        at = read_http_date(text)
        if at is None:
            return None
        seconds = at - now
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


@attrs.frozen(slots=True)
class DeliveryWorker:
    database: Database
    notices: Notices
    fan_out: FanOut
    quick_http: HttpClient
    other_http: HttpClient
    sealed: SealedSecrets
    clock: Clock = system_clock

    async def run(self) -> None:
        """Fan out and deliver until cancelled."""
        moved, quick, others = Wake(), Wake(), Wake()
        async with (
            self.notices.subscribe(INDEX_MOVED, lambda _: moved()),
            self.notices.subscribe(BATCH_MOVED, lambda _: moved()),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._fan_out, moved, (quick, others))
            tasks.start_soon(self._update_metrics)
            tasks.start_soon(self._run_lane, quick, MAX_QUICK_TURNS, True)
            tasks.start_soon(self._run_lane, others, MAX_OTHER_TURNS, False)

    async def _fan_out(self, moved: Wake, lanes: Sequence[Wake]) -> None:
        """Write messages whenever the index or a batch has changed, and wake the lanes of this process. Lanes of other
        processes query for due endpoints once a second."""
        failed = False
        while True:
            try:
                while await self.fan_out.run_round():
                    pass
                failed = False
            except Retryable as error:
                if not failed:
                    log.warning("webhook messages not written", reason=error.message)
                failed = True
            for wake in lanes:
                wake()
            await moved.wait(POLL_INTERVAL_S)

    async def _update_metrics(self) -> None:
        while True:
            with suppress(Retryable):
                async with self.database.connection() as connection:
                    await endpoints_sql.update_lateness_metric(connection)
            await anyio.sleep(METRICS_INTERVAL_S)

    async def _run_lane(self, wake: Wake, max_turns: int, quick: bool) -> None:
        """Run up to `max_turns` turns at a time. A lane takes turns either of quick endpoints or of all others."""
        running: set[str] = set()  # webhooks that have a turn of this lane
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    taken = await self._start_turns(tasks, running, max_turns, wake, quick)
                except Retryable as error:
                    log.warning("due webhooks not read", reason=error.message)
                    taken = 0
                if not taken:
                    await wake.wait(POLL_INTERVAL_S)

    async def _start_turns(self, tasks: TaskGroup, running: set[str], max_turns: int, wake: Wake, quick: bool) -> int:
        """Start turns, up to `max_turns` at a time. Skip an endpoint while its previous turn runs in this process. The
        database may offer such an endpoint, because there the turn has already ended or timed out."""
        if len(running) >= max_turns:
            return 0
        async with self.database.connection() as connection:
            turns = await turns_sql.take_turns(
                connection, max_turns - len(running), TURN_LEASE_S, quick=quick, except_for=running
            )
        for turn in turns:
            running.add(turn.webhook_id)
            tasks.start_soon(self._run_turn, turn, running, wake, quick)
        return len(turns)

    async def _run_turn(self, turn: EndpointTurn, running: set[str], wake: Wake, quick: bool) -> None:
        try:
            await self.deliver_due(turn, self.quick_http if quick else self.other_http)
        except Retryable as error:
            # The turn times out in the database. Then a process takes another turn of the endpoint.
            log.warning("webhook turn not stored", webhook=turn.webhook_id, reason=error.message)
        except Exception:
            # Catch a bug that one endpoint triggers. Otherwise, it would end each process that takes the endpoint.
            log.exception("webhook turn failed", webhook=turn.webhook_id)
        finally:
            running.remove(turn.webhook_id)
            wake()

    async def deliver_due(self, turn: EndpointTurn, http: HttpClient) -> None:
        """Post due messages, and store the outcome. A failing endpoint gets only one message per turn."""
        secret = self.sealed.open(turn.webhook_id, turn.secret)
        async with self.database.connection() as connection:
            if secret is None:
                log.error("webhook secret not opened", webhook=turn.webhook_id)
                await turns_sql.end_empty_turn(connection, turn.webhook_id, SECRET_RETRY_PAUSE_S)
                return
            due_messages = await turns_sql.read_due_messages(
                connection, turn.webhook_id, 1 if turn.failures_in_a_row else MAX_TURN_MESSAGES
            )
            if not due_messages:  # another process has posted the messages, although its turn had timed out
                await turns_sql.end_empty_turn(connection, turn.webhook_id, 0)
                return
        attempts = await self._post_all(http, turn, secret, due_messages)
        result = _build_turn_result(turn, due_messages, attempts)
        gone = any(attempt.status == _GONE_STATUS for attempt in attempts.values())

        async def write(connection: Connection) -> DisabledBecause | None:
            failing_for = await turns_sql.end_turn(connection, turn.webhook_id, result)
            reason: DisabledBecause | None = "gone" if gone else "failing" if failing_for >= DISABLE_AFTER_S else None
            if reason is not None:
                await turns_sql.disable_endpoint(connection, turn.webhook_id, reason)
            return reason

        disabled = await self.database.transact(write)
        if disabled is not None:
            log.info("webhook disabled", webhook=turn.webhook_id, reason=disabled)

    async def _post_all(
        self, http: HttpClient, turn: EndpointTurn, secret: bytes, due_messages: list[DueMessage]
    ) -> dict[int, PostAttempt]:
        """Post until the first failure. Return the attempts by message id. There is at least one attempt."""
        attempts: dict[int, PostAttempt] = {}
        waiting = iter(due_messages)
        began = time.monotonic()
        posting = True

        async def post_next_messages() -> None:
            nonlocal posting
            while posting and (message := next(waiting, None)) is not None:
                attempts[message.id] = attempt = await self._post_message(http, turn.url, secret, message)
                posting = posting and attempt.succeeded and time.monotonic() - began < LATEST_POST_START_S

        async with anyio.create_task_group() as tasks:
            for _ in range(min(MAX_CONCURRENT_POSTS_PER_ENDPOINT, len(due_messages))):
                tasks.start_soon(post_next_messages)
        return attempts

    async def _post_message(self, http: HttpClient, url: str, secret: bytes, message: DueMessage) -> PostAttempt:
        now = self.clock()
        headers = {
            "content-type": "application/json",
            "user-agent": "svc-webhooks",
            **signed_headers(secret, message.message_id, int(now), message.body),
        }
        began = time.monotonic()
        try:
            async with http("POST", url, headers, (message.body,)) as response:  # the response's body is not read
                attempt = PostAttempt(response.status, time.monotonic() - began)
                if attempt.succeeded:  # delivered, even if a header is malformed
                    return attempt
                return attrs.evolve(attempt, retry_after_s=read_retry_after(response.headers.get("retry-after"), now))
        except NoResponse:
            return PostAttempt(None, time.monotonic() - began)


async def run_deliveries(
    database: Database,
    notices: Notices,
    keys: Sequence[Secret],
    *,
    allow_private: bool = False,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Fan out and deliver until cancelled. With `allow_private`, also deliver to addresses of private networks."""
    async with (
        open_destinations(
            connections=MAX_QUICK_TURNS * MAX_CONCURRENT_POSTS_PER_ENDPOINT, allow_private=allow_private, tls=tls
        ) as quick,
        open_destinations(
            connections=MAX_OTHER_TURNS * MAX_CONCURRENT_POSTS_PER_ENDPOINT, allow_private=allow_private, tls=tls
        ) as others,
    ):
        await DeliveryWorker(database, notices, FanOut(database), quick, others, SealedSecrets(keys)).run()


def _build_turn_result(
    turn: EndpointTurn, due_messages: list[DueMessage], attempts: dict[int, PostAttempt]
) -> TurnResult:
    delivered, given_up, retry_delays = [], [], {}
    worst: PostAttempt | None = None
    for message in due_messages:
        attempt = attempts.get(message.id)
        if attempt is None:
            continue
        if attempt.succeeded:
            delivered.append(message.id)
            continue
        worst = attempt
        delay = retry_delay_after(message.attempts + 1, attempt.retry_after_s)
        if delay is None:
            given_up.append(message.id)
        else:
            retry_delays[message.id] = delay
    if worst is None:
        quick = all(attempt.duration_s < MAX_QUICK_ANSWER_S for attempt in attempts.values())
        return TurnResult(delivered, (), {}, 0, list(attempts.values())[-1].status, quick, 0.0)
    failures = turn.failures_in_a_row + 1
    pause = min(MIN_FAILURE_PAUSE_S * 2.0 ** min(failures - 1, 16), MAX_FAILURE_PAUSE_S)
    requested_pause = max((attempt.retry_after_s or 0.0) for attempt in attempts.values())
    return TurnResult(
        delivered, given_up, retry_delays, failures, worst.status, is_quick=False, pause_s=max(pause, requested_pause)
    )
