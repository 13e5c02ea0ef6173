"""One complete soak: rounds of load and faults, each followed by all checks at rest."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import asyncpg
import attrs

from tests.soak import report
from tests.soak.audits import forget_audits, install_audits
from tests.soak.faults.database import install_trouble, remove_trouble
from tests.soak.faults.schedule import Lane, crowded_lanes, lanes, strike_until_cancelled
from tests.soak.ground import BLOCK_SECONDS, Ground, soaked_market
from tests.soak.options import Options
from tests.soak.resources import Look, growth, look
from tests.soak.risks import Risk, Run, counted, hollow, under_way
from tests.soak.sampling import ChainHistory
from tests.soak.timeline import Timeline
from tests.soak.traffic.crowd import Crowd
from tests.soak.traffic.hooks import receiving
from tests.soak.useful import too_little, unexplained
from tests.soak.verdict import Remains, Window, come_to_rest, judged, keep_unended, violations

_STATUS_EVERY_S: Final = 60.0
# A longer chain is checked in windows, each from the start of the round before. Jobs, batches and files live for less
# than a round, and no reorganisation is as deep. Content of jobs without a result is kept for an hour, so a whole chain
# must be younger when its round ends.
_MAX_WHOLE_BLOCKS: Final = 1_800
_MAX_LOOKS: Final = 64
_MAX_MOMENTS: Final = 1_000  # more than in the three days for which ended relays are kept

Say = Callable[[str], None]


async def soak(options: Options, say: Say) -> dict[str, Any]:
    """Return the summary for soak.json. The run fails if it shows a broken invariant."""
    logs = (options.out / "soak-logs").absolute()
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        say(f"starting the market; its logs go to {logs}")
        async with (
            receiving() as receiver,
            soaked_market(Path(folder), logs, coordinators=options.coordinators, providers=options.providers) as ground,
        ):
            await install_audits(ground.database_url)
            timeline = Timeline()
            soaking = Soak(options, say, timeline, ground, Crowd(ground, options, timeline, receiver))
            await soaking.crowd.prepare()
            timeline.began += timeline.now
            soaking.looks.append(await look(ground, timeline.now))
            for number in range(1, options.rounds + 1):
                await soaking.round(number)
                report.write(options.out, soaking.summary())
            await soaking.end()
    summary = soaking.summary()
    report.write(options.out, summary)
    return summary


@attrs.define
class Soak:
    """State of a run between its rounds."""

    options: Options
    say: Say
    timeline: Timeline
    ground: Ground
    crowd: Crowd
    history: ChainHistory = attrs.field(factory=ChainHistory)
    audited: Counter[str] = attrs.field(factory=Counter)
    under_way: Counter[str] = attrs.field(factory=Counter)
    emptied: list[tuple[float, float]] = attrs.field(factory=list)
    looks: list[Look] = attrs.field(factory=list)
    risks: list[Risk] = attrs.field(factory=list)
    rounds: int = 0  # complete
    window: Window | None = None  # what the next checks read, or None for the whole chain
    _last: Window | None = None  # the start of the last complete round

    async def round(self, number: int) -> None:
        """Run load and faults, wait until the market is idle, and check everything."""
        options, ground, timeline = self.options, self.ground, self.timeline
        self.say(
            f"round {number} of {options.rounds}: {options.round_minutes:g} minutes of load and faults,"
            f" seed {options.seed}"
        )
        start = await _now(ground)
        if start.block > _MAX_WHOLE_BLOCKS:
            self.window = self._last
        self._last = start
        await install_trouble(ground.database_url)
        await self._disturb(number)
        self.say(f"round {number}: coming to rest")
        await remove_trouble(ground.database_url)
        found = unexplained(timeline)
        self.emptied = [*self.emptied, *timeline.moments("relayer_empty")][-_MAX_MOMENTS:]
        foreign = timeline.fault_counts().get("foreign_transaction", 0)
        remains = Remains(
            ground.anvil,
            ground.database_url,
            ground.pin_store,
            ground.book,
            ground.config,
            self.emptied,
            foreign,
            options.patience,
            self.window,
        )
        found += await come_to_rest(remains, last=number == options.rounds)
        self.say(f"round {number}: checking the invariants")
        found += await self.crowd.hooks.undelivered(ground.database_url, options.patience)
        found += await self.crowd.streams.missed_events(ground.database_url)
        found += [*await violations(remains, self.crowd.promised), *await ground.write_ahead.found()]
        ground.write_ahead.violations.clear()
        await self.history.catch_up(ground)
        self.looks.append(await look(ground, timeline.now))
        if len(self.looks) > _MAX_LOOKS:
            del self.looks[2:-1:2]  # the first two and the last are compared
        connection = await asyncpg.connect(ground.database_url)
        try:
            self.under_way += await under_way(connection, timeline)
            self.audited += await forget_audits(connection)
            self.risks = await counted(connection, self._run(number))
        finally:
            await connection.close()
        for line in found:
            self.say(f"broken: {line}")
            timeline.complain(line)
        self.crowd.end_round()
        timeline.end_round()
        self.rounds = number
        await ground.anvil.mine_every(BLOCK_SECONDS)
        self.say(f"round {number}: {self.status()}")

    async def end(self) -> None:
        """Check the whole run, and stop every daemon."""
        options, timeline = self.options, self.timeline
        whole = [*too_little(timeline, options.minutes), *hollow(self.risks), *growth(self.looks)]
        self.say("stopping every daemon")
        for line in [*whole, *await _ended_well(self.ground)]:
            timeline.complain(line)

    def status(self) -> str:
        timeline = self.timeline
        return (
            f"{timeline.now / 60:.0f} min of load and checks, {self.crowd.jobs:,} jobs,"
            f" {sum(timeline.fault_counts().values())} faults, {len(timeline.complaints)} broken"
        )

    def summary(self) -> dict[str, Any]:
        options = self.options
        return {
            "seed": options.seed,
            "minutes": options.minutes,
            "rounds": [self.rounds, options.rounds],
            "coordinators": options.coordinators,
            "providers": options.providers,
            "jobs": self.crowd.jobs,
            "broadcasts": self.ground.write_ahead.broadcasts,
            **self.timeline.as_json(),
            "risks": [str(risk) for risk in self.risks],
            "looks": [one.as_json() for one in self.looks],
            "invariants": judged(self.timeline.complaints),
        }

    def _run(self, number: int) -> Run:
        return Run(
            self.timeline,
            number * self.options.round_minutes,
            self.crowd.jobs,
            self.ground.write_ahead.broadcasts,
            streamed=self.crowd.streams.heard,
            posted=self.crowd.hooks.receiver.posts,
            seen=self.history.counts,
            audited=self.audited,
            under_way=self.under_way,
        )

    async def _disturb(self, number: int) -> None:
        """Run load and faults in parallel. Faults end first, and then clients finish their started work."""
        options, timeline, crowd = self.options, self.timeline, self.crowd
        async with anyio.create_task_group() as watching:
            watching.start_soon(self.history.watch, self.ground)
            watching.start_soon(self._tell)
            for daemon in self.ground.daemons:
                watching.start_soon(daemon.watch)
            async with anyio.create_task_group() as clients:
                clients.start_soon(crowd.run)
                async with anyio.create_task_group() as faults:
                    for lane in self._lanes(number):
                        faults.start_soon(strike_until_cancelled, self.ground, lane, timeline)
                    await anyio.sleep(options.round_minutes * 60)
                    faults.cancel_scope.cancel()
                crowd.close()
                clients.cancel_scope.deadline = anyio.current_time() + options.patience
            if clients.cancel_scope.cancelled_caught:
                timeline.complain(
                    f"I1: clients were not done {options.patience:g} s after the last fault:"
                    f" {', '.join(crowd.unfinished)}"
                )
                await keep_unended(self.ground.database_url, options.out / "soak-logs" / "unended.json")
            await crowd.one_of_each()
            watching.cancel_scope.cancel()

    def _lanes(self, number: int) -> list[Lane]:
        options = self.options
        # The index is rebuilt from the whole chain, which takes too long for a round later.
        faults = [kind for kind in options.faults if self.window is None or kind != "reorg_beyond_journal"]
        seed = options.seed if number == 1 else f"{options.seed}/{number}"
        if options.every:
            return crowded_lanes(faults, seed, options.every)
        return lanes(faults, seed, options.fault_every)

    async def _tell(self) -> None:
        told = len(self.timeline.complaints)
        while True:
            await anyio.sleep(_STATUS_EVERY_S)
            for complaint in self.timeline.complaints[told:]:
                self.say(f"broken: {complaint}")
            told = len(self.timeline.complaints)
            self.say(self.status())


async def _now(ground: Ground) -> Window:
    connection = await asyncpg.connect(ground.database_url)
    try:
        now = await connection.fetchval("select clock_timestamp()")
    finally:
        await connection.close()
    return Window(int(await ground.anvil.call("eth_blockNumber"), 16), now)


async def _ended_well(ground: Ground) -> list[str]:
    """Stop each daemon. Return daemons that exited before, or with a status other than 0."""
    found = [f"{d.name} ended by itself with status {status}" for d in ground.daemons for status in d.deaths]
    for daemon in (*ground.providers, *ground.coordinators):
        if (status := await daemon.stop()) != 0:
            found.append(f"{daemon.name} ended with status {status} after SIGTERM")
    return found
