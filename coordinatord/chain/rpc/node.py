"""Node of the chain: its state, and how failures and answers change it."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import anyio
import msgspec
import structlog

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import Rpc, Transport, quantity
from coordinatord.chain.rpc.errors import Meaning, RpcError, read_error

log = structlog.get_logger(__name__)

FAILURES: Final = 3  # in a row: from then on a node is away
_SLOW: Final = 5.0  # seconds: a request that failed after longer counts as all of them
_LONGEST_REST: Final = 60.0
_DOUBTED: Final = 600.0  # seconds for which a node is not asked that two others have contradicted
_PATIENCE: Final = 5.0  # seconds for a node's head
_LONGEST_REFUSAL: Final = 4096  # bytes: a refusal is short, and an answer of another length is not looked through
_TURNED_AWAY: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Node:
    """One endpoint, and what is known of it. Only requests that go through here are counted."""

    def __init__(
        self, name: str, own: Transport, callers: Transport | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.own = self._counted(own)
        self.callers = self.own if callers is None else self._counted(callers)
        self.rpc = Rpc(self.own)
        self.head: int | None = None
        self.foreign = False  # it serves another chain
        self._clock = clock
        self._failures = 0
        self._rests_until = self._doubted_until = 0.0
        metrics.node_up.labels(name).set(1)

    def _counted(self, transport: Transport) -> Transport:
        async def post(body: bytes) -> tuple[int, bytes]:
            began = self._clock()
            try:
                status, answer = await transport(body)
            except NoResponse:
                self.failed(FAILURES if self._clock() - began > _SLOW else 1)
                raise
            if turned_away(status, answer):
                self.failed()
            else:
                self.answered()
            return status, answer

        return post

    @property
    def failing(self) -> bool:
        return self._failures > 0

    @property
    def away(self) -> bool:
        return self._failures >= FAILURES

    @property
    def resting(self) -> bool:
        """True while a node that is away is left alone: longer after each failure, up to a minute."""
        return self.away and self._clock() < self._rests_until

    @property
    def doubted(self) -> bool:
        return self._clock() < self._doubted_until

    def failed(self, times: int = 1) -> None:
        was_away = self.away
        self._failures += times
        rest = min(_LONGEST_REST, 2.0 ** min(self._failures - FAILURES, 6)) if self.away else 0.0
        self._rests_until = self._clock() + rest
        if self.away and not was_away:
            log.warning("node away", node=self.name)
            metrics.node_up.labels(self.name).set(0)

    def answered(self) -> None:
        if self.away:
            log.info("node back", node=self.name)
            metrics.node_up.labels(self.name).set(1)
        self._failures = 0

    def doubt(self, what: str) -> None:
        """Ask it nothing for a while: others agree on something else than it says."""
        metrics.node_contradicted.labels(self.name).inc()
        if not self.doubted:
            log.error("node contradicted by the others", node=self.name, about=what)
        self._doubted_until = self._clock() + _DOUBTED

    def saw_head(self, number: int) -> None:
        self.head = number
        metrics.node_head.labels(self.name).set(number)

    async def look(self, chain_id: int) -> None:
        """Ask for its head, and which chain it serves. Never raises for what a node does."""
        if self.resting:
            return
        try:
            with anyio.fail_after(_PATIENCE):
                found = quantity(await self.rpc.call("eth_chainId"))
                head = quantity(await self.rpc.call("eth_blockNumber"))
        except TimeoutError:
            self.failed(FAILURES)
            return
        except (Retryable, RpcError):
            return
        if found != chain_id and not self.foreign:
            log.error("node serves another chain", node=self.name, chain_id=found)
        self.foreign = found != chain_id
        self.saw_head(head)


def turned_away(status: int, answer: bytes) -> bool:
    """True for an answer that says nothing but that this endpoint does not serve us, or not now."""
    if status in _TURNED_AWAY:
        return True
    if status >= HTTPStatus.BAD_REQUEST and answer.lstrip()[:1] not in (b"{", b"["):
        return True
    if len(answer) > _LONGEST_REFUSAL or b'"error"' not in answer:
        return False
    try:
        decoded = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    for one in decoded if isinstance(decoded, list) else [decoded]:
        error = one.get("error") if isinstance(one, dict) else None
        if isinstance(error, dict) and read_error(error).meaning is Meaning.RATE_LIMITED:
            return True
    return False
