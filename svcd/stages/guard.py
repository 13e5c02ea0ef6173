"""Protect the provider's reputation: withhold claims that would end in a fail or a reclaim.

The guard checks before the first poll and every half minute after it. `DaemonHealth` stores the result for pollers and
claimers. A withheld model is not polled either, because polling makes the provider a candidate for clients.
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
from svcd.stages.reputation_risks import Risk, allowed_windows, rival, wrong_clock, wrong_key, wrong_name, wrong_windows

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 30.0
_INTERVAL_WHILE_WITHHELD_S: Final = 3.0
_BACKEND_TIMEOUT_S: Final = 15.0
_RIVAL_LIFETIME_S: Final = 600.0  # since the last claim of another daemon

POLLED_RECENTLY: Final = "it polled a moment ago; a killed daemon still counts until MATCH_LIVENESS_MS have passed"


@attrs.define(slots=True, eq=False)
class Guard:
    """`chain` is None without a node. The coordinator's windows are used then."""

    coordinator: Coordinator
    chain: ChainReader | None
    clock: Clock
    health: DaemonHealth
    provider_id: int
    box: SecretKey | None
    models: Mapping[str, tuple[ModelConfig, Backend]]
    _alone: bool = False  # no other daemon polled when this one started polling
    _rival_until: float = 0.0  # loop time
    _rival_job: str = ""

    async def at_start(self) -> None:
        """Check until one check succeeds. Polling starts after that."""
        while True:
            if await self._look():
                return
            await trio.sleep(_INTERVAL_WHILE_WITHHELD_S)

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(_INTERVAL_WHILE_WITHHELD_S if self.health.holds else _INTERVAL_S)
            await self._look()

    def claimed_by_another(self, job: str) -> None:
        """Withhold all claims after a claim of this wallet that this daemon did not send."""
        now = trio.current_time()
        self._rival_job = self._rival_job if now < self._rival_until else job
        self._alone, self._rival_until = False, now + _RIVAL_LIFETIME_S
        others = [hold for hold in self.health.holds or () if hold.reason != "other_daemon"]
        self.health.hold([*others, Hold("other_daemon", str(self._claimed()))])

    async def _look(self) -> bool:
        """Return False, and keep the earlier result, if the check could not be made."""
        try:
            self.health.hold(await self.look())
        except (Unavailable, Refused) as error:
            log.warning("claim risks not checked", reason=str(error))
            return False
        return True

    async def look(self) -> list[Hold]:
        provider = await self.coordinator.provider(self.provider_id)
        holds = [Hold("box_key", key) for key in _present(wrong_key(self.box, provider))]
        holds += [Hold("clock", clock) for clock in _present(wrong_clock(self.clock))]
        holds += [Hold("other_daemon", other) for other in _present(await self._rival())]
        offered = (window for model, _ in self.models.values() for window in model.asks)
        allowed = await allowed_windows(self.coordinator, self.chain, offered)
        for name, (model, backend) in self.models.items():
            if allowed is not None:
                holds += [Hold("window", str(risk), name, window) for window, risk in wrong_windows(model, allowed)]
            is_up, unknown = False, None
            with trio.move_on_after(_BACKEND_TIMEOUT_S):
                is_up = await backend.is_up()
            if not is_up:
                holds.append(
                    Hold("backend", f"{name}: its backend does not answer: start it, or correct its address", name)
                )
                continue
            with trio.move_on_after(_BACKEND_TIMEOUT_S):
                unknown = await backend.unknown_name(name)
            if unknown is not None:
                holds.append(Hold("model_name", str(wrong_name(name, unknown)), name))
        return holds

    async def _rival(self) -> Risk | None:
        """Return a warning about another daemon on this wallet.

        Polls show another daemon only until this daemon polls, because the coordinator cannot distinguish the two.
        """
        if trio.current_time() < self._rival_until:
            return self._claimed()
        if not self._alone and await self.coordinator.is_polled_for(self.provider_id):
            return rival(self.provider_id, POLLED_RECENTLY)
        self._alone = True
        return None

    def _claimed(self) -> Risk:
        return rival(self.provider_id, f"it claimed {self._rival_job}")


def _present(risk: Risk | None) -> list[str]:
    return [] if risk is None else [str(risk)]
