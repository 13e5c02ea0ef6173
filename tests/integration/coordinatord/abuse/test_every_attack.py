"""Every attack that strangers can run, all at once, on running processes while honest jobs go on; and the same attacks
on processes without their defences, so that it is seen that each of them would pass its bound.

ABUSE_SECONDS sets the length of the attack.
"""

import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import asyncpg
import attrs
import pytest

from common.scalars import hex_of
from coordinatord.chain.relayer.budgets import MIN_ESTABLISHED_JOBS, GasPolicy
from coordinatord.chain.rpc.client import open_rpc
from coordinatord.run.constructors import relayer_settings
from devnet.anvil import TX_GAS_CAP
from devnet.world import World
from tests.integration.coordinatord.abuse.campaign import Campaign, campaign, settings_of
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.indexer.moves import address_book
from tests.support.attacks.spending import Bait, FullBatches
from tests.support.coordinator import config_of
from tests.support.fakes.budgets import UNLIMITED
from tests.support.invariants.budgets import budget_violations
from tests.support.invariants.exits import exit_violations

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SECONDS: Final = float(os.environ.get("ABUSE_SECONDS", "8"))
ROUNDS: Final = 2 if SECONDS < 60 else 4  # of quiet and attack, alternating
BUYERS: Final = 2
PROTECTED: Final = {
    "gas": attrs.asdict(
        attrs.evolve(
            GasPolicy.from_daily_gas(500_000, 5_000_000),
            work_daily_gas=60_000_000,
            upkeep_daily_gas=50_000_000,
            unlisted_upkeep_daily_gas=1_600_000,
            daily_gas_per_settled_job=500_000,
            hourly_percent=100,
        )
    ),
    "storage": {
        "max_newcomer_bytes": 1_500_000,
        "max_newcomer_rows": 400,
        "max_earner_bytes": 100 << 30,
        "max_earner_rows": 5_000_000,
        "max_all_newcomers_bytes": 16 << 30,
        "max_all_newcomers_rows": 1_000_000,
    },
    "body_stall_timeout_s": 1,
    "connections_per_caller": 24,
    "RELAY_MAX_FEE_GWEI": 50,
    "RELAY_MAX_TIP_GWEI": 2,
}
OPEN: Final = {
    **UNLIMITED,
    "BUDGET_NEWCOMERS_GAS": 10**12,  # a budget of 0 would treat newcomers like everyone else
    "body_stall_timeout_s": 60,
    "connections_per_caller": 8192,
    "uploads_per_caller": 1000,
    "uploads_per_wallet": 1000,
    "REQUESTS_PER_SECOND": 10_000,
    "RELAY_MAX_DEPTH": 512,
}
MEMORY: Final = 96 << 20  # limit of the coordinator's memory growth
BOMBED: Final = 256 << 20  # same, for a provider whose first gateway sends answers that decompress to twice this size
SILENT: Final = 4.5  # seconds until the end of a silent body is noticed on a busy machine
STARVED: Final = 5  # limit in seconds for a matching order while the provider is leased orders that do not match
# In its slowest percentile, honest traffic may take twice as long as without attacks. Differences below these floors
# are noise: two cores run attackers, buyers, provider, coordinator, node and database, and in a short run other tests
# too.
FLOORS: Final = (
    {"reads": 1.0, "posts": 5.0, "jobs": 15.0} if SECONDS < 60 else {"reads": 0.25, "posts": 1.5, "jobs": 8.0}
)
UNTIL_ALL_MET: Final = 60.0
UNTIL_ALL_PASS: Final = 90.0
_UNENDED: Final = (
    "select count(*) from batches where coalesce(completed_at, failed_at, expired_at, cancelled_at) is null"
)
_END_BATCHES: Final = (
    "update batches set expires_at = clock_timestamp()"
    " where coalesce(completed_at, failed_at, expired_at, cancelled_at) is null"
)
_CANCELLED_AGAIN: Final = (
    "select count(*) from (select subject from relays where kind = 'cancel' and state = 'mined'"
    " group by subject having count(*) > 1) as again"
)
_WAITING_BAIT: Final = (
    "select count(*) from jobs j join relays r on r.subject = j.job_id and r.kind = 'post'"
    " where j.owner = any($1::bytea[]) and j.state = 0"
    " and r.ended_at < clock_timestamp() - $2::float8 * interval '1 second'"
    " and not exists (select from leases l where l.job_id = j.job_id)"
    " and exists (select from leases l join jobs u using (job_id) where u.owner = any($3::bytea[])"
    "  and l.expires_at > clock_timestamp())"
)


async def passed_bounds(over: Campaign, database_url: str) -> dict[str, list[str]]:
    """Return by attack the resources that were used beyond the limits of PROTECTED, regardless of the coordinator's
    configured limits."""
    config = config_of(settings_of(over.world, database_url, over.world.anvil.rpc_url, PROTECTED))
    fetchval, wallets = over.connection.fetchval, over.attacks.target.wallets
    found: dict[str, list[str]] = {}
    for line in await budget_violations(over.connection, config):
        owners = [name for name, of_it in wallets.items() if any(hex_of(wallet) in line for wallet in of_it)]
        found.setdefault(owners[0] if owners else "newcomers together", []).append(line)
    if over.attacks.silent.longest > SILENT:
        found["silent bodies"] = [f"one was held for {over.attacks.silent.longest:.1f} s"]
    if over.attacks.idle.most_open > config.limits.connections_per_caller:
        found["idle connections"] = [f"{over.attacks.idle.most_open} were open"]
    tip = await fetchval("select max(max_tip) from relay_tx_versions")
    if tip > (config.relay_max_tip_gwei or 0) * 10**9:
        found["absurd tips"] = [f"{tip} wei were offered"]
    if again := await fetchval(_CANCELLED_AGAIN):
        found["cancels of what has ended"] = [f"{again} jobs were cancelled more than once"]
    if over.provider_bytes > BOMBED:
        found["bombs"] = [f"the provider took {over.provider_bytes >> 20} MiB"]
    bait, unwanted = wallets.get(Bait.NAME, []), wallets.get("unwanted orders", [])
    if waiting := await fetchval(_WAITING_BAIT, bait, STARVED, unwanted):
        found["unwanted orders"] = [f"{waiting} orders that are asked for wait behind those that are not"]
    return found


async def test_honest_jobs_settle_during_bounded_attacks(world: World, database_url: str, tmp_path: Path) -> None:
    async with campaign(world, database_url, tmp_path, PROTECTED, buying=BUYERS) as over:
        # The attacks use up the budget shared by all newcomers.
        await over.settle_first_jobs(MIN_ESTABLISHED_JOBS)
        for _ in range(ROUNDS - 1):
            await over.quiet(SECONDS / ROUNDS / 2)
            await over.attacked(SECONDS / ROUNDS)
        await over.quiet(SECONDS / ROUNDS / 2)
        await over.attacked(
            SECONDS / ROUNDS, at_most=SECONDS + UNTIL_ALL_MET, until=partial(_each_attack_was_met, over)
        )
        assert over.timeline.complaints == []
        assert await passed_bounds(over, database_url) == {}
        assert await exit_violations(over.connection) == []
        assert over.grown_bytes < MEMORY
        assert await _each_attack_was_met(over), over.timeline.as_json()
        await _transactions_are_fit_for_the_chain(over)
        _honest_are_served(over)
        assert await over.provider.stop() == 0
        await _until_nothing_is_under_way(over)
        book = address_book(world)
        assert await all_violations(database_url, world.anvil.rpc_url, book, promised=over.bought) == []
        settled = await over.connection.fetch("select job_id from jobs where state = 2")
        assert over.bought <= {row["job_id"] for row in settled}
        over.coordinator.terminate()
        assert await over.coordinator.exit_status() == 0


async def test_each_attack_exceeds_its_bound_without_defences(world: World, database_url: str, tmp_path: Path) -> None:
    expected = {
        "upkeep",
        "posts and cancels",
        "uploaded batch",
        "junk files",
        "silent bodies",
        "idle connections",
        "newcomers together",
        "absurd tips",
        "cancels of what has ended",
        "bombs",
        "unwanted orders",
    }
    async with campaign(world, database_url, tmp_path, OPEN, defended=False) as over:
        await _full_transactions_fit_under_the_cap(over, database_url)
        bait, enough = Bait(over.attacks.target), anyio.Event()
        found: dict[str, list[str]] = {}
        async with anyio.create_task_group() as striking:
            striking.start_soon(over.attacks.run_until, enough)
            with anyio.move_on_after(UNTIL_ALL_PASS):
                while not found.keys() >= expected:
                    await bait.strike(0)
                    found |= await passed_bounds(over, database_url)
            enough.set()
            striking.cancel_scope.cancel()
        assert expected <= found.keys(), over.timeline.as_json()


async def _full_transactions_fit_under_the_cap(over: Campaign, database_url: str) -> None:
    """Check that full transactions are all mined. Their gas is limited by the chain, not by a budget."""
    full = FullBatches(over.attacks.target)
    posts = "select count(*) from relays where kind = 'post' and priority < 3 and state = $1"
    fetchval = over.connection.fetchval
    async with anyio.create_task_group() as posting, _nothing_is_signed(database_url):
        posting.start_soon(full.strike, 0)
        await _until(lambda: fetchval(posts, "queued"), lambda queued: queued >= full.at_once)
    assert await fetchval(posts, "mined") == full.at_once
    most_ops, most_gas = await over.connection.fetchrow(
        "select max(t.ops), max(t.gas) from (select x.gas, count(*) as ops from relays r"
        " join relay_txs x on x.id = r.tx_id where x.succeeded group by x.id) as t"
    ) or (0, 0)
    assert most_ops == relayer_settings(over.config).coalesce_max
    assert most_gas <= TX_GAS_CAP


@asynccontextmanager
async def _nothing_is_signed(database_url: str) -> AsyncIterator[None]:
    """Stop signing, so that new posts wait in the queue."""
    holding = await asyncpg.connect(database_url)
    try:
        async with holding.transaction():
            await holding.execute("lock table relay_txs in share row exclusive mode")
            yield
    finally:
        await holding.close()


async def _until(ask: Callable[[], Awaitable[int]], right: Callable[[int], bool]) -> None:
    with anyio.fail_after(60):
        while not right(await ask()):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.05)


async def _each_attack_was_met(over: Campaign) -> bool:
    """Return whether every attack got far enough to be rejected. Otherwise the campaign proves nothing."""
    outcomes = over.timeline.outcome_counts()
    refused = {
        "upkeep": "429 busy",
        "posts on one balance": "409 InsufficientBalance",
        "posts and cancels": "429 busy",
        "junk files": "429 busy",
        "silent bodies": "408",
        "odd messages": "folded header 400",
        "pictures": "failed",
    }
    if set(outcomes) != {attack.name for attack in over.attacks} or not over.bombs.heads:
        return False
    if not all(any(refusal in outcome for outcome in outcomes[attack]) for attack, refusal in refused.items()):
        return False
    # Lines over the budget wait, so only a part of the batch was posted.
    batches = over.attacks.target.wallets["uploaded batch"]
    posted = await over.connection.fetchval("select count(*) from jobs where owner = any($1::bytea[])", batches)
    return 0 < posted < over.attacks.batch.lines * len(batches)


async def _transactions_are_fit_for_the_chain(over: Campaign) -> None:
    fetchval = over.connection.fetchval
    assert await fetchval("select max(gas) from relay_txs") <= TX_GAS_CAP
    assert await fetchval("select max(max_fee) from relay_tx_versions") <= over.config.relay_max_fee_gwei * 10**9
    assert await fetchval("select count(*) from relay_txs where purpose <> 'relay'") == 0
    reserve = over.config.relay_reserve_gas * over.config.relay_max_fee_gwei * 10**9
    account = await fetchval("select account from relay_txs limit 1")
    async with open_rpc(over.world.anvil.rpc_url) as rpc:
        assert int(await rpc.call_as(str, "eth_getBalance", hex_of(account), "latest"), 16) > reserve


def slowest_hundredth(seconds: Sequence[float]) -> float:
    """Return the 99th percentile, or the maximum of less than a hundred."""
    return sorted(seconds)[math.ceil(len(seconds) * 0.99) - 1]


def _honest_are_served(over: Campaign) -> None:
    told = []
    for what, floor in FLOORS.items():
        alone, beside = (slowest_hundredth(getattr(times, what)) for times in (over.alone, over.beside))
        told.append(f"{what}: {beside:.2f} s beside attacks, {alone:.2f} s without")
        assert beside <= max(2 * alone, floor), told
    sys.stdout.write("slowest hundredth of honest traffic: " + "; ".join(told) + "\n")


async def _until_nothing_is_under_way(over: Campaign) -> None:
    """Lines over their owner's gas budget wait as long as their batch has time, and go on when there is room: batches
    end here, or a post may come of strangers' at any moment."""
    await over.connection.execute(_END_BATCHES)
    for left in (_UNENDED, "select count(*) from relays where state in ('queued', 'signed')"):
        await _until(partial(over.connection.fetchval, left), lambda count: count == 0)
