"""A complete svcd in the coordinators' simulation. trio runs as a guest of the simulated loop, and requests take the
same simulated network as all others. Its backend echoes the input."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import trio

from common.api.states import EndedBecause, JobState
from common.box import SecretKey
from common.scalars import hex_of
from svcd.backends.discount import AskRates
from svcd.base.end_reasons import WorkFailed
from svcd.config import AheadTable, DaemonConfig
from svcd.journal.work import ModelWork, WorkOutput
from tests.integration.coordinatord.scene.party import wallet_of
from tests.simulation.coordinator.actors import Told
from tests.simulation.coordinator.clocks import START
from tests.simulation.coordinator.ground import Ground
from tests.simulation.coordinator.guest import Guest, heard
from tests.simulation.coordinator.loop import SimulatedLoop
from tests.simulation.coordinator.ways import COORDINATOR, GATEWAY, Ways
from tests.simulation.daemon import GRACE_S, DaemonLives, small_rows
from tests.simulation.disk import Disk
from tests.simulation.plan import OF_SVCD, Plan
from tests.simulation.promises import JournalPromises
from tests.simulation.trace import Trace
from tests.support.fakes.market import request_name
from tests.support.fakes.streamed import StreamedTransport, streamed
from tests.unit.svcd.stages.running import Backend, config_for, model_for

MODEL: Final = "demo/text-small"
RATES: Final = AskRates(100, 200)
WINDOWS: Final = (60, 300)
_UNITS: Final = 10
_AHEAD: Final = AheadTable(max_amount=10**6, max_in_flight=2 * 10**6, settled_jobs=1)
_LONGEST_RUN: Final = 12.0
Index = dict[str, tuple[int, int, int]]  # state, end reason and provider, by job
_UNKNOWN: Final = (-1, 0, 0)


class SimulatedDaemon:
    """Lives of one svcd with the wallet of the market's first provider. `index` returns the current index."""

    def __init__(
        self,
        loop: SimulatedLoop,
        plan: Plan,
        ground: Ground,
        ways: Ways,
        folder: Path,
        *,
        told: Told,
        trace: Trace,
        index: Callable[[], Index],
    ) -> None:
        account = ground.wallets.with_role("provider")[0]
        self.provider, self.box = wallet_of(account), SecretKey(account.box_secret)
        self.provider_id = ground.market.provider_ids[account.address]
        self.life = 0
        self._ways, self._told, self._trace, self._noisy = ways, told, trace, plan.noisy
        self._chance = random.Random(f"svcd {plan.seed}")
        self._runs_ahead = self._chance.choice((None, _AHEAD))  # of the blocks of its posts and claims
        self._index = index
        self._disk = Disk(folder, random.Random(f"disk {plan.seed}"))
        self._guest = Guest(loop)
        self.promises = JournalPromises(self._disk, told.named, ways.store.sealed_in)
        self._lives = DaemonLives(
            self,
            self.promises,
            self._disk,
            trace,
            kills=[kill for kill in plan.kills if kill.of == OF_SVCD],
            config=self._config,
            backend=Backend(self._work),
            chance=self._chance,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._disk.watched(), small_rows(), self._guest.running(self._lives.live):
            yield

    async def end(self) -> None:
        self._lives.end()
        await self._guest.ended()

    def moment(self, what: str) -> None:
        self._lives.moment(what)

    @property
    def at_rest(self) -> bool:
        return not (self._lives.held or self._live(self._index()))

    def _live(self, index: Index) -> list[str]:
        """Return the jobs that the daemon considers live. An unposted job may be live until its order expires."""
        return [job for job in self.promises.live() if job in index]

    # --- surroundings ---

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        return StreamedTransport(partial(self._carried, self.life))

    def now(self) -> float:
        return START + trio.current_time()

    async def _carried(self, life: int, request: httpx.Request) -> httpx.Response:
        await request.aread()
        name = request_name(request)
        self.moment(f"{name} sets out")
        self._require_heard(life)
        self.promises.arrives(name, request)
        response: httpx.Response = await heard(self._guest, self._ways.whole(request))
        self.moment(f"the answer to {name} sets out")
        self._require_heard(life)
        return streamed(response)

    def _require_heard(self, life: int) -> None:
        if life != self.life:
            raise httpx.ConnectError("this daemon is no more")

    def _config(self, state: Path) -> DaemonConfig:
        asks = dict.fromkeys(WINDOWS, RATES)
        return config_for(
            self,
            state,
            coordinator_url=COORDINATOR,
            gateways=(GATEWAY,),
            models=(
                model_for(MODEL, {"text"}, asks=asks, margin_seconds=15.0, poll_seconds=3.0, ahead=self._runs_ahead),
            ),
            shutdown_grace_seconds=GRACE_S,
        )

    async def _work(self, work: ModelWork) -> WorkOutput:
        job = hex_of(work.job_id)
        is_ahead = self._index().get(job, _UNKNOWN)[0] != JobState.CLAIMED
        self._trace.add(f"{self._told.named(job)} runs{' ahead' if is_ahead else ''}")
        self.promises.runs_now(work.job_id, is_ahead=is_ahead)
        await trio.sleep(self._chance.uniform(0, _LONGEST_RUN))
        if trio.current_time() < self._noisy and self._chance.random() < 0.05:
            raise WorkFailed("backend_exhausted", "as it happens", backend_fault=True)
        return WorkOutput(work.input, _UNITS + self._chance.randrange(5), {"units": _UNITS})

    # --- the end ---

    def judge(self) -> None:
        index = self._index()
        self.promises.judge_ends(self._lives.held, self._live(index))
        for job, (state, because, provider) in index.items():
            entry, reason = self.promises.entry(job)
            ours = provider == self.provider_id
            if ours and state == JobState.SETTLED and entry != "settled":
                self.promises.breaks(f"{self._told.named(job)} is settled, and the journal has {entry} {reason}")
            if ours and because == EndedBecause.PROVIDER_FAIL and entry not in ("failed", "given_up"):
                self.promises.breaks(f"{self._told.named(job)} failed, and the journal has {entry} {reason}")
