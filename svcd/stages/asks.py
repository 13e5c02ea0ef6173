"""The asks on the book kept as they are configured, and taken off it when the daemon stops.

A snapshot changes the pairs of model and window that it names, and no others; both rates 0 withdraw one. So what is on
the book and no longer configured is named with zeros.
"""

from collections.abc import Iterable
from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.api import limits
from common.messages.providers import Ask
from common.refusal import Refused
from svcd.base import metrics
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import CoordinatorRefusal, Published, PublishOutcome, Unanswered
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.journal import Journal
from svcd.stages.health import DaemonHealth

log = structlog.get_logger(__name__)

_EVERY: Final = 60.0
_RETRY: Final = 5.0
_PATIENCE: Final = 90.0
_SIGNED_AT: Final = "asks.signed_at"
_JUMP: Final = 60  # seconds by which signed_at is moved on when the chain has a newer one than we know of


@attrs.define(slots=True, eq=False)
class AskPublisher:
    """Publishes and withdraws this daemon's asks. The asks of another daemon on the same wallet are left alone."""

    coordinator: Coordinator
    signer: OpSigner
    provider_id: int
    journal: Journal
    health: DaemonHealth
    _wanted: frozenset[Ask] = frozenset()
    _own: frozenset[Ask] = frozenset()  # published by this daemon, or found on the book as wanted
    _jump: int = 0
    _told: bool = False  # that it is not listed
    _unheard: frozenset[Ask] = frozenset()  # published without an answer: they may come onto the book yet

    def want(self, asks: Iterable[Ask]) -> None:
        """Publish these as well."""
        self._wanted |= frozenset(asks)

    async def run(self) -> NoReturn:
        while True:
            try:
                done = self.health.is_alone and await self.publish()
            except (Unavailable, Refused) as error:
                log.warning("asks not compared", reason=str(error))
                done = False
            await trio.sleep(_EVERY if done else _RETRY)

    async def withdraw(self) -> None:
        """Withdraw this daemon's asks, with a few attempts."""
        for _ in range(3):
            if not self.health.is_alone:
                return
            try:
                own = self._own & (await self._posted() | self._unheard)
                if await self._publish(frozenset(), own):
                    return
            except (Unavailable, Refused) as error:
                log.warning("asks not withdrawn", reason=str(error))
            await trio.sleep(1)

    async def publish(self) -> bool:
        """Make the book show the wanted asks and no others. Return False if there is more to do soon."""
        posted = await self._posted()
        self._own |= posted & self._wanted
        return await self._publish(self._wanted, posted)

    async def _publish(self, wanted: frozenset[Ask], posted: frozenset[Ask]) -> bool:
        outstanding = differing(wanted, posted)
        quotes = outstanding[: limits.SNAPSHOT_QUOTES]
        metrics.asks_published.set(len(posted))
        if not quotes:
            return True
        # The book shows the asks of listed providers only: others could not tell whether theirs are on it.
        if wanted and not (await self.coordinator.provider(self.provider_id)).listed:
            self._waits_for_listing()
            return True
        self._told = False
        signed_at = await self.journal.next_time(_SIGNED_AT, skip=self._jump)
        # The registry accepts quotes in ascending order only.
        body = self.signer.asks(self.provider_id, signed_at, sorted(quotes, key=_pair))
        published = frozenset(quote for quote in quotes if quote in wanted)
        self._own |= published
        self._unheard |= published
        answer = await self.coordinator.publish(body, trio.current_time() + _PATIENCE)
        if isinstance(answer, Published):
            self._jump, self._unheard = 0, frozenset()
            log.info("asks published" if wanted else "asks withdrawn", signed_at=signed_at, quotes=len(quotes))
            now_posted = await self._posted()
            metrics.asks_published.set(len(now_posted))
            return len(quotes) == len(outstanding) or not differing(wanted, now_posted)
        self._failed(answer)
        return False

    def _waits_for_listing(self) -> None:
        if not self._told:
            log.warning("not listed by the market's admin: asks wait until then")
        self._told = True

    async def _posted(self) -> frozenset[Ask]:
        rows = await self.coordinator.asks_of(self.provider_id)
        return frozenset(Ask(row.model_id, row.sla, row.rate_in, row.rate_out) for row in rows)

    def _failed(self, outcome: PublishOutcome) -> None:
        match outcome:
            case CoordinatorRefusal(status=409):
                # Another run of this provider signed a newer one, at most an hour ahead.
                self._jump = min(3000, max(_JUMP, self._jump * 2))
                log.warning("asks superseded", code=outcome.code)
            case CoordinatorRefusal():
                log.warning("asks not published", status=outcome.status, code=outcome.code)
            case Unanswered() | SignInRefused():
                log.warning("asks not published", reason=outcome.detail)


def differing(wanted: Iterable[Ask], posted: Iterable[Ask]) -> list[Ask]:
    """The quotes that turn the one into the other: withdrawals first, so that a cut list never posts too much."""
    wanted, posted = frozenset(wanted), frozenset(posted)
    pairs = {(ask.model_id, ask.sla) for ask in wanted}
    gone = [Ask(ask.model_id, ask.sla, 0, 0) for ask in posted if (ask.model_id, ask.sla) not in pairs]
    return sorted(gone, key=_pair) + sorted(wanted - posted, key=_pair)


def _pair(ask: Ask) -> tuple[int, int]:
    return ask.model_id, ask.sla
