"""One complete soak."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import asyncpg

from tests.invariants.market_log import read_market_log
from tests.soak import report
from tests.soak.audits import install_audits
from tests.soak.faults.database import install_trouble, remove_trouble
from tests.soak.faults.schedule import Lane, crowded_lanes, lanes, strike_until_cancelled
from tests.soak.ground import BLOCK_SECONDS, Ground, soaked_market
from tests.soak.options import Options
from tests.soak.risks import Risk, Run, counted, hollow
from tests.soak.sampling import ChainHistory, sample_until_cancelled
from tests.soak.timeline import Timeline
from tests.soak.traffic.crowd import Crowd
from tests.soak.traffic.hooks import receiving
from tests.soak.useful import too_little, unexplained
from tests.soak.verdict import Remains, come_to_rest, judged, keep_unended, violations


async def soak(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the summary for soak.json. The run fails if it shows a broken invariant."""
    timeline = Timeline()
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
            await install_trouble(ground.database_url)
            crowd = Crowd(ground, options, timeline, receiver)
            await crowd.prepare()
            timeline.began += timeline.now
            say(f"{options.minutes:g} minutes of load and faults, seed {options.seed}")
            history = ChainHistory()
            await _disturb(ground, options, timeline, crowd, history)
            say("coming to rest")
            await remove_trouble(ground.database_url)
            remains = Remains(
                ground.anvil,
                ground.database_url,
                ground.pin_store,
                ground.book,
                ground.config,
                timeline.moments("relayer_empty"),
                timeline.fault_counts().get("foreign_transaction", 0),
                options.patience,
            )
            found = [*timeline.complaints, *too_little(timeline, options.minutes), *unexplained(timeline)]
            found += await come_to_rest(remains)
            say("checking the invariants")
            found += await crowd.hooks.undelivered(ground.database_url, options.patience)
            found += await crowd.streams.untold(ground.database_url)
            found += [*await violations(remains, crowd.promised), *await ground.write_ahead.found()]
            risks = await _risks(options, timeline, crowd, ground, history)
            found += hollow(risks)
            say("stopping every daemon")
            await ground.anvil.mine_every(BLOCK_SECONDS)  # mine what providers still publish
            found += await _ended_well(ground)
    summary = {
        "seed": options.seed,
        "minutes": options.minutes,
        "coordinators": options.coordinators,
        "providers": options.providers,
        "jobs": len(crowd.promised),
        "broadcasts": ground.write_ahead.broadcasts,
        **timeline.as_json(),
        "risks": [str(risk) for risk in risks],
        "invariants": judged(found),
    }
    report.write(options.out, summary, timeline)
    return summary


async def _disturb(ground: Ground, options: Options, timeline: Timeline, crowd: Crowd, history: ChainHistory) -> None:
    """Run load and faults in parallel. Faults end first, and then clients finish their started work."""
    async with anyio.create_task_group() as watching:
        watching.start_soon(sample_until_cancelled, ground, timeline)
        watching.start_soon(history.watch, ground)
        for daemon in ground.daemons:
            watching.start_soon(daemon.watch)
        async with anyio.create_task_group() as clients:
            clients.start_soon(crowd.run)
            async with anyio.create_task_group() as faults:
                for lane in _lanes(options):
                    faults.start_soon(strike_until_cancelled, ground, lane, timeline)
                await crowd.until_enough(options.minutes * 60)
                faults.cancel_scope.cancel()
            crowd.close()
            clients.cancel_scope.deadline = anyio.current_time() + options.patience
        if clients.cancel_scope.cancelled_caught:
            timeline.complain(
                f"I1: clients were not done {options.patience:g} s after the last fault: {', '.join(crowd.unfinished)}"
            )
            await keep_unended(ground.database_url, options.out / "soak-logs" / "unended.json")
        await crowd.one_of_each()
        watching.cancel_scope.cancel()


def _lanes(options: Options) -> list[Lane]:
    if options.every:
        return crowded_lanes(options.faults, options.seed, options.every)
    return lanes(options.faults, options.seed, options.fault_every)


async def _risks(
    options: Options, timeline: Timeline, crowd: Crowd, ground: Ground, history: ChainHistory
) -> list[Risk]:
    log = await read_market_log(ground.anvil.rpc_url, ground.book)
    history.add(log)
    run = Run(
        timeline,
        options.minutes,
        log,
        len(crowd.promised),
        ground.write_ahead.broadcasts,
        streamed=crowd.streams.heard,
        posted=crowd.hooks.receiver.posts,
        seen=history.counts(),
    )
    connection = await asyncpg.connect(ground.database_url)
    try:
        return await counted(connection, run)
    finally:
        await connection.close()


async def _ended_well(ground: Ground) -> list[str]:
    """Daemons end when asked, with status 0; none ended unasked before."""
    found = [f"{d.name} ended by itself with status {status}" for d in ground.daemons for status in d.deaths]
    for daemon in (*ground.providers, *ground.coordinators):
        if (status := await daemon.stop()) != 0:
            found.append(f"{daemon.name} ended with status {status} after SIGTERM")
    return found
