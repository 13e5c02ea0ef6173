"""The asks on the book kept as they are configured, and taken off it when the daemon stops.

A snapshot changes the pairs of model and window that it names, and no others; both rates 0 withdraw one. So what is on
the book and no longer configured is named with zeros.
"""

from collections.abc import Callable, Iterable
from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.api import limits
from common.messages.providers import Ask
from common.refusal import Refused
from svcd.base import metrics
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator, ProviderRecord
from svcd.coordinator.outcomes import OpMined, describe
from svcd.coordinator.requests import CoordinatorReply, Unanswered
from svcd.coordinator.sessions import OpSigner, SignInRefused
from svcd.journal.held_job import Slots
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
        if isinstance(answer, CoordinatorReply) and answer.status == 200:
            self._jump, self._unheard = 0, frozenset()
            log.info("asks published" if wanted else "asks withdrawn", signed_at=signed_at, quotes=len(quotes))
            now_posted = await self._posted()
            metrics.asks_published.set(len(now_posted))
            return len(quotes) == len(outstanding) or not differing(wanted, now_posted)
        self._refused(answer)
        return False

    def _waits_for_listing(self) -> None:
        if not self._told:
            log.warning("not listed by the market's admin: asks wait until then")
        self._told = True

    async def _posted(self) -> frozenset[Ask]:
        rows = await self.coordinator.asks_of(self.provider_id)
        return frozenset(Ask(row.model_id, row.sla, row.rate_in, row.rate_out) for row in rows)

    def _refused(self, answer: CoordinatorReply | Unanswered | SignInRefused) -> None:
        match answer:
            case CoordinatorReply(status=409):
                # Another run of this provider signed a newer one, at most an hour ahead.
                self._jump = min(3000, max(_JUMP, self._jump * 2))
                log.warning("asks superseded", code=answer.code)
            case CoordinatorReply():
                log.warning("asks not published", status=answer.status, code=answer.code)
            case _:
                log.warning("asks not published", reason=answer.detail)


def differing(wanted: Iterable[Ask], posted: Iterable[Ask]) -> list[Ask]:
    """The quotes that turn the one into the other: withdrawals first, so that a cut list never posts too much."""
    wanted, posted = frozenset(wanted), frozenset(posted)
    pairs = {(ask.model_id, ask.sla) for ask in wanted}
    gone = [Ask(ask.model_id, ask.sla, 0, 0) for ask in posted if (ask.model_id, ask.sla) not in pairs]
    return sorted(gone, key=_pair) + sorted(wanted - posted, key=_pair)


def _pair(ask: Ask) -> tuple[int, int]:
    return ask.model_id, ask.sla


# Models that are configured and not in the coordinator's catalogue: looked for from time to time until they are.


@attrs.frozen(slots=True, eq=False)
class Catalogue:
    """`model_ids` (by name) is the daemon's own view, and grows here. `begin` is called with each model that came."""

    coordinator: Coordinator
    configured: Iterable[str]
    model_ids: dict[str, int]
    begin: Callable[[str], None]

    async def run(self) -> None:
        """Returns when every configured model is known."""
        while missing := set(self.configured) - self.model_ids.keys():
            await trio.sleep(_EVERY)
            try:
                known = await self.coordinator.models()
            except (Unavailable, Refused) as error:
                log.warning("catalogue not read", reason=str(error))
                continue
            self.model_ids.update(known)
            for name in sorted(missing & known.keys()):
                log.info("this model came into the catalogue, and is offered", model=name)
                self.begin(name)


# Capacity: the jobs that the network lets this provider hold, read from the registry and raised where it is too low.

_ISSUED_AT: Final = "providers.issued_at"
_REQUESTED: Final = "providers.requested"
_FULL_REPUTATION: Final = 1000
_UINT32: Final = 2**32 - 1
_TOGETHER: Final = 1.0  # seconds: the ends of one block come together, and one look is enough for them


@attrs.frozen(slots=True, eq=False)
class Capacity:
    coordinator: Coordinator
    signer: OpSigner
    provider_id: int
    slots: Slots
    journal: Journal

    async def run(self) -> NoReturn:
        while True:
            try:
                again = await self.look()
            except (Unavailable, Refused) as error:
                log.warning("granted capacity not read", reason=str(error))
                again = True
            with trio.move_on_after(_RETRY if again else _EVERY):
                await self.slots.until_grant_may_differ()
                await trio.sleep(_TOGETHER)

    async def look(self) -> bool:
        """True when more was requested, and may be granted by now."""
        provider = await self._read()
        needed = request_for(self.slots.capacity, provider)
        # Only for more than ever before: what a ceiling keeps from us is not had by asking again.
        if provider.capacity < self.slots.capacity and await self.journal.noted(_REQUESTED) < needed:
            requested = await self._request(needed)
            if requested:
                await self._read()  # what was mined may be in the index already
            return requested
        return False

    async def _read(self) -> ProviderRecord:
        self.slots.ask_for_grant()
        provider = await self.coordinator.provider(self.provider_id)
        if provider.capacity != self.slots.granted:
            log.info("capacity granted", granted=provider.capacity, slots=self.slots.capacity, listed=provider.listed)
        self.slots.grant(provider.capacity)
        return provider

    async def _request(self, n: int) -> bool:
        op = self.signer.request_capacity(n, await self.journal.next_time(_ISSUED_AT))
        outcome = await self.coordinator.run(op, trio.current_time() + _PATIENCE)
        log.info("capacity requested", n=n, outcome=describe(outcome))
        if isinstance(outcome, OpMined):
            await self.journal.note(_REQUESTED, n)
        return isinstance(outcome, OpMined)


def request_for(slots: int, provider: ProviderRecord) -> int:
    """What must be requested so that, at this reputation, the grant is as large as the slots."""
    return min(_UINT32, -(-slots * _FULL_REPUTATION // max(1, provider.reputation)))
