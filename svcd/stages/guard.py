"""Guard of the provider's reputation: nothing is claimed while a claim would end in a fail or a reclaim.

Looked at before the first poll and every half minute from then on; `DaemonHealth` keeps what was found, pollers and
claimers ask it. Who polls is named to clients as a candidate, so a model that is withheld is not polled for either.
"""

from collections.abc import Mapping
from typing import Final, NoReturn

import attrs
import structlog
import trio

from common.box import SecretKey
from common.refusal import Refused
from svcd.backends.backend import Backend
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader
from svcd.coordinator.client import Coordinator
from svcd.stages.health import DaemonHealth, Hold
from svcd.stages.reputation_risks import allowed_windows, rival, wrong_clock, wrong_key, wrong_name, wrong_windows

log = structlog.get_logger(__name__)

_EVERY: Final = 30.0
_SOONER: Final = 3.0  # while something is withheld, or could not be looked at
_LOOK_SECONDS: Final = 15.0
_RIVAL_LASTS: Final = 600.0  # after a claim by another hand


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


def _given(detail: str | None) -> list[str]:
    return [] if detail is None else [detail]
