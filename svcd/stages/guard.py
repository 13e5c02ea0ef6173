"""Guard of the provider's reputation: nothing is claimed while a claim would end in a fail or a reclaim.

Looked at before the first poll and every half minute from then on; `DaemonHealth` keeps what was found, pollers and
claimers ask it. Who polls is named to clients as a candidate, so a model that is withheld is not polled for either.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.box import SecretKey
from common.refusal import Refused
from common.scalars import hex_of
from svcd.backends.backend import Backend
from svcd.base.errors import Unavailable
from svcd.base.timings import MOST_SKEW, Clock
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import Coordinator, MarketReads, ProviderRecord
from svcd.stages.health import DaemonHealth, Hold

log = structlog.get_logger(__name__)

_EVERY: Final = 30.0
_SOONER: Final = 3.0  # while something is withheld, or could not be looked at
_LOOK_SECONDS: Final = 15.0
_RIVAL_LASTS: Final = 600.0  # after a claim by another hand

# What is wrong, in words that `svcd check` has for it too.


def wrong_key(box: SecretKey | None, provider: ProviderRecord) -> str | None:
    """Jobs that are designated to a key that is not ours cannot be opened. Without a key none of them are claimed."""
    if box is None or provider.box_key == (ours := hex_of(box.public.raw)):
        return None
    theirs = provider.box_key or "none"
    return f"the box key is {ours}, the registry has {theirs}: `svcd identity` publishes ours, or put theirs in place"


def wrong_clock(clock: Clock) -> str | None:
    if clock.is_believed:
        return None
    way = "ahead of" if clock.ahead > 0 else "behind"
    return (
        f"this clock is {abs(clock.ahead):.0f} s {way} the coordinator's, and at most {MOST_SKEW:.0f} s are corrected:"
        " set it (timedatectl set-ntp true)"
    )


def wrong_windows(model: ModelConfig, allowed: Collection[int]) -> Iterator[tuple[int, str]]:
    """Windows that are offered and that no order can have, each with what to do."""
    for window in sorted(model.asks.keys() - frozenset(allowed)):
        known = ", ".join(map(str, sorted(allowed))) or "none"
        yield window, f"{model.name}: the market takes no window of {window} s; it takes {known}: change sla_seconds"


def wrong_name(model: str, unknown: str) -> str:
    return f"{model}: {unknown}: set models under [model.backend]"


def rival(provider_id: int, seen: str) -> str:
    remedy = "one wallet is one daemon: stop the other, or give this one a wallet of its own"
    return f"another daemon works as provider {provider_id} ({seen}); {remedy}"


POLLED: Final = "it polled a moment ago; one that was killed is taken for another until MATCH_LIVENESS_MS are over"


@attrs.define(slots=True, eq=False)
class Guard:
    """`chain`: None where there is no node to ask; the coordinator is asked then."""

    coordinator: Coordinator
    chain: ChainReader | None
    clock: Clock
    health: DaemonHealth
    provider_id: int
    box: SecretKey | None
    models: Mapping[str, tuple[ModelConfig, Backend]]
    _alone: bool = False  # nobody else polled when this daemon began to
    _rival_until: float = 0.0  # loop time
    _rival_job: str = ""

    async def at_start(self) -> None:
        """Returns after the first look that came through: nothing is polled before."""
        while True:
            if await self._look():
                return
            await trio.sleep(_SOONER)

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(_SOONER if self.health.holds else _EVERY)
            await self._look()

    def claimed_by_another(self, job: str) -> None:
        """A claim of this wallet that this daemon did not send."""
        now = trio.current_time()
        self._rival_job = self._rival_job if now < self._rival_until else job
        self._alone, self._rival_until = False, now + _RIVAL_LASTS
        others = [hold for hold in self.health.holds or () if hold.reason != "other_daemon"]
        self.health.hold([*others, Hold("other_daemon", self._claimed())])

    async def _look(self) -> bool:
        """False when it could not be seen: then what was found before stands."""
        try:
            self.health.hold(await self.look())
        except (Unavailable, Refused) as error:
            log.warning("not known whether claims are safe", reason=str(error))
            return False
        return True

    async def look(self) -> list[Hold]:
        provider = await self.coordinator.provider(self.provider_id)
        holds = [Hold("box_key", key) for key in _given(wrong_key(self.box, provider))]
        holds += [Hold("clock", clock) for clock in _given(wrong_clock(self.clock))]
        holds += [Hold("other_daemon", other) for other in _given(await self._rival())]
        offered = (window for model, _ in self.models.values() for window in model.asks)
        allowed = await allowed_windows(self.coordinator, self.chain, offered)
        for name, (model, backend) in self.models.items():
            if allowed is not None:
                holds += [Hold("window", detail, name, window) for window, detail in wrong_windows(model, allowed)]
            is_up, unknown = False, None
            with trio.move_on_after(_LOOK_SECONDS):
                is_up = await backend.is_up()
            if not is_up:
                holds.append(
                    Hold("backend", f"{name}: its backend does not answer: start it, or correct its address", name)
                )
                continue
            with trio.move_on_after(_LOOK_SECONDS):
                unknown = await backend.unknown_name(name)
            if unknown is not None:
                holds.append(Hold("model_name", wrong_name(name, unknown), name))
        return holds

    async def _rival(self) -> str | None:
        """Looked for while this daemon does not poll: from then on it is itself what is seen."""
        if trio.current_time() < self._rival_until:
            return self._claimed()
        if not self._alone and await self.coordinator.is_polled_for(self.provider_id):
            return rival(self.provider_id, POLLED)
        self._alone = True
        return None

    def _claimed(self) -> str:
        return rival(self.provider_id, f"it claimed {self._rival_job}")


async def allowed_windows(
    coordinator: MarketReads, chain: ChainReader | None, offered: Iterable[int]
) -> Collection[int] | None:
    """Windows that the market takes, by the coordinator, or those of the offered ones that the chain allows."""
    told = await coordinator.windows()
    if told is not None or chain is None:
        return told
    try:
        return [window for window in sorted(frozenset(offered)) if await chain.allows_window(window)]
    except Unavailable:  # jobs that are claimed wait for the node anyway
        return None


def _given(detail: str | None) -> list[str]:
    return [] if detail is None else [detail]
