"""Publish the configured asks, and withdraw them when the daemon stops.

A snapshot is the signed list of asks that svcd sends. It changes only the pairs of model and window in the list. To
withdraw an ask, svcd lists its pair with zero rates.
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
from svcd.coordinator.outcomes import AsksPublished, CoordinatorRefusal, PublishOutcome, Unanswered
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.journal import Journal
from svcd.stages.health import DaemonHealth

log = structlog.get_logger(__name__)

_COMPARE_INTERVAL_S: Final = 60.0
_RETRY_INTERVAL_S: Final = 5.0
_PUBLISH_TIMEOUT_S: Final = 90.0
_SIGNED_AT_KEY: Final = "asks.signed_at"
_MIN_SKIP_S: Final = 60  # added to signed_at when the chain has a newer snapshot
_MAX_SKIP_S: Final = 3000


@attrs.define(slots=True, eq=False)
class AskPublisher:
    """Publisher of this daemon's asks. It changes no asks while another daemon uses the same wallet."""

    coordinator: Coordinator
    signer: OpSigner
    provider_id: int
    journal: Journal
    health: DaemonHealth
    _wanted_asks: frozenset[Ask] = frozenset()
    _own_asks: frozenset[Ask] = frozenset()  # published by this daemon, or already published as configured
    _skip_s: int = 0
    _is_unlisted_logged: bool = False
    _unconfirmed_asks: frozenset[Ask] = frozenset()  # sent without a confirmation, so the chain may still accept them

    def add_asks(self, asks: Iterable[Ask]) -> None:
        """Add asks to publish."""
        self._wanted_asks |= frozenset(asks)

    async def run(self) -> NoReturn:
        while True:
            try:
                done = self.health.is_only_daemon and await self.publish()
            except (Unavailable, Refused) as error:
                log.warning("asks not compared", reason=str(error))
                done = False
            await trio.sleep(_COMPARE_INTERVAL_S if done else _RETRY_INTERVAL_S)

    async def withdraw(self) -> None:
        """Withdraw this daemon's asks, in up to three attempts."""
        for _ in range(3):
            if not self.health.is_only_daemon:
                return
            try:
                own = self._own_asks & (await self._read_posted() | self._unconfirmed_asks)
                if await self._publish_changes(frozenset(), own):
                    return
            except (Unavailable, Refused) as error:
                log.warning("asks not withdrawn", reason=str(error))
            await trio.sleep(1)

    async def publish(self) -> bool:
        """Publish missing asks and withdraw unwanted asks. Return False if a retry is needed soon."""
        posted = await self._read_posted()
        self._own_asks |= posted & self._wanted_asks
        return await self._publish_changes(self._wanted_asks, posted)

    async def _publish_changes(self, wanted: frozenset[Ask], posted: frozenset[Ask]) -> bool:
        changes = find_changed_asks(wanted, posted)
        quotes = changes[: limits.MAX_SNAPSHOT_QUOTES]
        metrics.asks_published.set(len(posted))
        if not quotes:
            return True
        # The coordinator hides the asks of an unlisted provider, so svcd cannot compare them with the wanted asks.
        if wanted and not (await self.coordinator.read_provider(self.provider_id)).listed:
            self._log_unlisted()
            return True
        self._is_unlisted_logged = False
        signed_at = await self.journal.next_signing_time(_SIGNED_AT_KEY, skip_s=self._skip_s)

        # The registry accepts quotes only in ascending order.
        body = self.signer.sign_asks(self.provider_id, signed_at, sorted(quotes, key=_model_and_window))
        published = frozenset(quote for quote in quotes if quote in wanted)
        self._own_asks |= published
        self._unconfirmed_asks |= published
        answer = await self.coordinator.publish_asks(body, trio.current_time() + _PUBLISH_TIMEOUT_S)
        if isinstance(answer, AsksPublished):
            self._skip_s, self._unconfirmed_asks = 0, frozenset()
            log.info("asks published" if wanted else "asks withdrawn", signed_at=signed_at, quotes=len(quotes))
            now_posted = await self._read_posted()
            metrics.asks_published.set(len(now_posted))
            return len(quotes) == len(changes) or not find_changed_asks(wanted, now_posted)
        self._log_failure(answer)
        return False

    def _log_unlisted(self) -> None:
        if not self._is_unlisted_logged:
            log.warning("asks withheld", reason="the market's admin has not listed this provider")
        self._is_unlisted_logged = True

    async def _read_posted(self) -> frozenset[Ask]:
        rows = await self.coordinator.read_provider_asks(self.provider_id)
        return frozenset(Ask(row.model_id, row.sla, row.rate_in, row.rate_out) for row in rows)

    def _log_failure(self, outcome: PublishOutcome) -> None:
        match outcome:
            case CoordinatorRefusal(status=409):
                # The chain has a newer snapshot, which another daemon signed at most an hour ahead of time.
                self._skip_s = min(_MAX_SKIP_S, max(_MIN_SKIP_S, self._skip_s * 2))
                log.warning("asks superseded", code=outcome.code)
            case CoordinatorRefusal():
                log.warning("asks not published", status=outcome.status, code=outcome.code)
            case Unanswered() | SignInRefused():
                log.warning("asks not published", reason=outcome.detail)


def find_changed_asks(wanted: Iterable[Ask], posted: Iterable[Ask]) -> list[Ask]:
    """Return the quotes that change the `posted` asks to the `wanted` asks.

    Withdrawals come first, so that a truncated list never leaves unwanted asks published.
    """
    wanted, posted = frozenset(wanted), frozenset(posted)
    pairs = {(ask.model_id, ask.sla) for ask in wanted}
    withdrawn = [Ask(ask.model_id, ask.sla, 0, 0) for ask in posted if (ask.model_id, ask.sla) not in pairs]
    return sorted(withdrawn, key=_model_and_window) + sorted(wanted - posted, key=_model_and_window)


def _model_and_window(ask: Ask) -> tuple[int, int]:
    return ask.model_id, ask.sla
