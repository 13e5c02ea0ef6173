"""A node of the chain, and its health, which follows from its answers and failures."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import anyio
import msgspec
import structlog

from common.strict_json import DECODE_ERRORS
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Rpc, Transport, decode_quantity
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind, classify_error

log = structlog.get_logger(__name__)

# Consecutive failures after which a node counts as unreachable.
MAX_FAILURES: Final = 3
# A request that fails after this time makes the node unreachable at once.
_SLOW_FAILURE_S: Final = 5.0
_MAX_SKIP_DURATION_S: Final = 60.0
# Time for which a node is not used after two other nodes contradicted it.
_SUSPENSION_DURATION_S: Final = 600.0
_HEAD_TIMEOUT_S: Final = 5.0
# Longer answers are not searched for errors, because a rejection is short.
_MAX_REJECTION_BYTES: Final = 4096
_REJECTED_STATUSES: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Node:
    """Endpoint of a node, with its health. Only requests through `daemon_transport` and `client_transport` affect the
    health. The latter is for requests of API clients."""

    def __init__(
        self,
        name: str,
        daemon_transport: Transport,
        client_transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.daemon_transport = self._track_health(daemon_transport)
        self.client_transport = (
            self.daemon_transport if client_transport is None else self._track_health(client_transport)
        )
        self.rpc = Rpc(self.daemon_transport)
        self.head: int | None = None
        # True if the node serves another chain.
        self.serves_other_chain = False
        self._clock = clock
        self._failures = 0
        self._skipped_until = self._suspended_until = 0.0
        metrics.node_up.labels(name).set(1)

    def _track_health(self, transport: Transport) -> Transport:
        async def post(body: bytes) -> tuple[int, bytes]:
            started = self._clock()
            try:
                status, answer = await transport(body)
            except NoResponse:
                self.record_failure(MAX_FAILURES if self._clock() - started > _SLOW_FAILURE_S else 1)
                raise
            if rejects_client(status, answer):
                self.record_failure()
            else:
                self.record_answer()
            return status, answer

        return post

    @property
    def is_failing(self) -> bool:
        return self._failures > 0

    @property
    def is_unreachable(self) -> bool:
        return self._failures >= MAX_FAILURES

    @property
    def is_skipped(self) -> bool:
        """Return True while an unreachable node is skipped. The pause grows with each failure, up to a minute."""
        return self.is_unreachable and self._clock() < self._skipped_until

    @property
    def is_suspended(self) -> bool:
        return self._clock() < self._suspended_until

    def record_failure(self, count: int = 1) -> None:
        was_unreachable = self.is_unreachable
        self._failures += count
        pause_s = (
            min(_MAX_SKIP_DURATION_S, 2.0 ** min(self._failures - MAX_FAILURES, 6)) if self.is_unreachable else 0.0
        )
        self._skipped_until = self._clock() + pause_s
        if self.is_unreachable and not was_unreachable:
            log.warning("node unreachable", node=self.name)
            metrics.node_up.labels(self.name).set(0)

    def record_answer(self) -> None:
        if self.is_unreachable:
            log.info("node recovered", node=self.name)
            metrics.node_up.labels(self.name).set(1)
        self._failures = 0

    def suspend(self, subject: str) -> None:
        """Stop using the node for a while, because other nodes contradict it."""
        metrics.node_contradicted.labels(self.name).inc()
        if not self.is_suspended:
            log.error("node contradicted by the others", node=self.name, about=subject)
        self._suspended_until = self._clock() + _SUSPENSION_DURATION_S

    def record_head(self, number: int) -> None:
        self.head = number

    async def read_head(self, chain_id: int) -> None:
        """Read the node's head and chain id. Failures of the node are not raised."""
        if self.is_skipped:
            return
        try:
            with anyio.fail_after(_HEAD_TIMEOUT_S):
                found = decode_quantity(await self.rpc.call("eth_chainId"))
                head = decode_quantity(await self.rpc.call("eth_blockNumber"))
        except TimeoutError:
            self.record_failure(MAX_FAILURES)
            return
        except (Retryable, RpcError):
            return
        if found != chain_id and not self.serves_other_chain:
            log.error("node serves another chain", node=self.name, chain_id=found)
        self.serves_other_chain = found != chain_id
        self.record_head(head)


def rejects_client(status: int, answer: bytes) -> bool:
    """Return True if the endpoint rejected the client (unauthorised or rate-limited) instead of answering the call."""
    if status in _REJECTED_STATUSES:
        return True
    if status >= HTTPStatus.BAD_REQUEST and answer.lstrip()[:1] not in (b"{", b"["):
        return True
    if len(answer) > _MAX_REJECTION_BYTES or b'"error"' not in answer:
        return False
    try:
        decoded = msgspec.json.decode(answer)
    except DECODE_ERRORS:
        return False
    for call in decoded if isinstance(decoded, list) else [decoded]:
        error = call.get("error") if isinstance(call, dict) else None
        if isinstance(error, dict) and classify_error(error).kind is RpcErrorKind.RATE_LIMITED:
            return True
    return False
