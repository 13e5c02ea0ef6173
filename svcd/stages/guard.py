"""Protect the provider's reputation: withhold claims that would end in a fail or a reclaim.

The guard checks before the first poll, and then every half minute. `DaemonHealth` stores the result for pollers and
claimers. While claims for a model are withheld, svcd does not poll for that model either, because clients designate
orders to providers that poll.
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
from svcd.stages.health import ClaimHold, DaemonHealth
from svcd.stages.reputation_risks import (
    Risk,
    other_daemon_risk,
    read_allowed_windows,
    wrong_clock_risk,
    wrong_key_risk,
    wrong_name_risk,
    wrong_window_risks,
)

log = structlog.get_logger(__name__)

_CHECK_INTERVAL_S: Final = 30.0
_CHECK_INTERVAL_WHILE_WITHHELD_S: Final = 3.0
_BACKEND_TIMEOUT_S: Final = 15.0
_OTHER_DAEMON_HOLD_S: Final = 600.0  # counted from the last claim of another daemon

OTHER_DAEMON_POLL_DETAIL: Final = (
    "it polled recently; a killed daemon is still counted until the coordinator's MATCH_LIVENESS_MS have passed"
)


@attrs.define(slots=True, eq=False)
class Guard:
    """Guard that checks for risks to the reputation. `chain` is None if no node is configured."""

    coordinator: Coordinator
    chain: ChainReader | None
    clock: Clock
    health: DaemonHealth
    provider_id: int
    box_secret: SecretKey | None
    models: Mapping[str, tuple[ModelConfig, Backend]]
    _is_alone: bool = False  # no other daemon polled when this daemon started to poll
    _other_daemon_until: float = 0.0  # loop time
    _other_daemon_job: str = ""

    async def wait_for_first_check(self) -> None:
        """Repeat the check until it succeeds. Polling starts afterwards."""
        while True:
            if await self._update_claim_holds():
                return
            await trio.sleep(_CHECK_INTERVAL_WHILE_WITHHELD_S)

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(_CHECK_INTERVAL_WHILE_WITHHELD_S if self.health.claim_holds else _CHECK_INTERVAL_S)
            await self._update_claim_holds()

    def withhold_for_other_daemon(self, job: str) -> None:
        """Withhold all claims, because another daemon claimed `job` with this wallet."""
        now = trio.current_time()
        self._other_daemon_job = self._other_daemon_job if now < self._other_daemon_until else job
        self._is_alone, self._other_daemon_until = False, now + _OTHER_DAEMON_HOLD_S
        others = [hold for hold in self.health.claim_holds or () if hold.reason != "other_daemon"]
        self.health.set_claim_holds([*others, ClaimHold("other_daemon", str(self._other_daemon_claim_risk()))])

    async def _update_claim_holds(self) -> bool:
        """Check the risks and store the holds. If the check fails, keep the earlier holds and return False."""
        try:
            self.health.set_claim_holds(await self.find_claim_holds())
        except (Unavailable, Refused) as error:
            log.warning("claim risks not checked", reason=str(error))
            return False
        return True

    async def find_claim_holds(self) -> list[ClaimHold]:
        """Return all current reasons to withhold claims."""
        provider = await self.coordinator.read_provider(self.provider_id)
        holds = [ClaimHold("box_key", text) for text in _risk_texts(wrong_key_risk(self.box_secret, provider))]
        holds += [ClaimHold("clock", text) for text in _risk_texts(wrong_clock_risk(self.clock))]
        holds += [ClaimHold("other_daemon", text) for text in _risk_texts(await self._find_other_daemon_risk())]
        offered = (window for model, _ in self.models.values() for window in model.asks)
        allowed = await read_allowed_windows(self.coordinator, self.chain, offered)
        for name, (model, backend) in self.models.items():
            if allowed is not None:
                holds += [
                    ClaimHold("window", str(risk), name, window) for window, risk in wrong_window_risks(model, allowed)
                ]
            is_up, unknown = False, None
            with trio.move_on_after(_BACKEND_TIMEOUT_S):
                is_up = await backend.is_up()
            if not is_up:
                holds.append(
                    ClaimHold(
                        "backend",
                        f"{name}: the backend does not answer: start the backend, or correct its address",
                        name,
                    )
                )
                continue
            with trio.move_on_after(_BACKEND_TIMEOUT_S):
                unknown = await backend.explain_unknown_model(name)
            if unknown is not None:
                holds.append(ClaimHold("model_name", str(wrong_name_risk(name, unknown)), name))
        return holds

    async def _find_other_daemon_risk(self) -> Risk | None:
        """Return a risk if another daemon uses this wallet.

        The coordinator cannot distinguish the polls of two daemons. A recent poll is therefore evidence of another
        daemon only before this daemon polls.
        """
        if trio.current_time() < self._other_daemon_until:
            return self._other_daemon_claim_risk()
        if not self._is_alone and await self.coordinator.has_recent_poll(self.provider_id):
            return other_daemon_risk(self.provider_id, OTHER_DAEMON_POLL_DETAIL)
        self._is_alone = True
        return None

    def _other_daemon_claim_risk(self) -> Risk:
        return other_daemon_risk(self.provider_id, f"it claimed {self._other_daemon_job}")


def _risk_texts(risk: Risk | None) -> list[str]:
    return [] if risk is None else [str(risk)]
