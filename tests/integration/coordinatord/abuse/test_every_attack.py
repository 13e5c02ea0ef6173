"""Every attack that strangers can run, all at once, on running processes while honest jobs go on; and the same attacks
on a coordinator without limits, so that it is seen that each of them would pass its bound.

Seconds of attack: ABUSE_SECONDS, of `make abuse`.
"""

import os
from pathlib import Path
from typing import Final

import anyio
import pytest

from common.scalars import hex_of
from coordinatord.chain.rpc import open_rpc
from coordinatord.config import read_config
from devnet.anvil import TX_GAS_CAP
from devnet.world import World
from tests.fakes.budgets import UNLIMITED
from tests.integration.coordinatord.abuse.campaign import Campaign, campaign, settings_of
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.indexer.moves import address_book
from tests.invariants.budgets import budget_violations
from tests.invariants.exits import exit_violations

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

SECONDS: Final = float(os.environ.get("ABUSE_SECONDS", "8"))
QUIET: Final = 6.0
BUYERS: Final = 2
PROTECTED: Final = {
    "BUDGET_POSTS_GAS": 500_000,
    "BUDGET_HOURLY_PERCENT": 100,
    "BUDGET_UNLISTED_UPKEEP_GAS": 1_600_000,
    "BUDGET_NEWCOMERS_GAS": 5_000_000,
    "STORAGE_NEW_BYTES": 1_500_000,
    "STORAGE_NEW_ROWS": 400,
    "BODY_SILENCE_S": 1,
    "CONNECTIONS_PER_CALLER": 24,
    "RELAY_MAX_FEE_GWEI": 50,
    "RELAY_MAX_TIP_GWEI": 2,
}
OPEN: Final = {
    **UNLIMITED,
    "BUDGET_NEWCOMERS_GAS": 10**12,  # with none, newcomers are not told apart
    "BODY_SILENCE_S": 60,
    "CONNECTIONS_PER_CALLER": 8192,
    "UPLOADS_PER_CALLER": 1000,
    "UPLOADS_PER_WALLET": 1000,
}
MEMORY: Final = 96 << 20  # that a coordinator may grow by, whatever is tried
BOMBED: Final = 256 << 20  # of a provider whose first gateway's answers unfold to twice as much
SILENT: Final = 4.5  # seconds until a silent body's end is seen, on a machine that is busy
# The machine of the tests is too busy to tell twice a tenth of a second from a tenth: what is asserted is that nobody
# waits for an attack to end.
LATE: Final = 8.0


async def passed_bounds(over: Campaign, world: World, database_url: str) -> dict[str, list[str]]:
    """By attack, what was spent, kept or held beyond the limits of PROTECTED, whatever the coordinator's own are."""
    config = read_config(settings_of(world, database_url, world.anvil.rpc_url, PROTECTED))
    found: dict[str, list[str]] = {}
    for line in await budget_violations(over.connection, config):
        owners = [
            name
            for name, wallets in over.attacks.target.wallets.items()
            if any(hex_of(wallet) in line for wallet in wallets)
        ]
        found.setdefault(owners[0] if owners else "newcomers together", []).append(line)
    if over.attacks.silent.longest > SILENT:
        found["silent bodies"] = [f"one was held for {over.attacks.silent.longest:.1f} s"]
    if over.attacks.idle.most_open > config.connections_per_caller:
        found["idle connections"] = [f"{over.attacks.idle.most_open} were open"]
    return found


async def test_honest_jobs_settle_beside_every_attack_and_each_attack_stays_within_its_bound(
    world: World, database_url: str, tmp_path: Path
) -> None:
    async with campaign(world, database_url, tmp_path, PROTECTED, attacked=SECONDS, quiet=QUIET, buying=BUYERS) as over:
        assert over.timeline.complaints == []
        assert await passed_bounds(over, world, database_url) == {}
        assert await exit_violations(over.connection) == []
        assert over.grown_bytes < MEMORY
        assert over.provider_bytes < BOMBED
        assert over.bombs.heads, "nobody asked the gateway that answers with bombs"
        await _each_attack_was_met(over)
        await _transactions_are_fit_for_the_chain(over)
        _honest_are_served(over)
        assert await over.provider.stop() == 0
        await _until_nothing_is_under_way(over)
        bought = {job for buyer in (*over.baseline, *over.meanwhile) for job in buyer.bought}
        book = address_book(world)
        assert await all_violations(database_url, world.anvil.rpc_url, book, promised=bought) == []
        settled = await over.connection.fetch("select job_id from jobs where state = 2")
        assert bought <= {row["job_id"] for row in settled}
        over.coordinator.terminate()
        assert await over.coordinator.exit_status() == 0


async def test_each_attack_passes_its_bound_where_nothing_holds_it_back(
    world: World, database_url: str, tmp_path: Path
) -> None:
    async with campaign(world, database_url, tmp_path, OPEN, attacked=8) as over:
        assert set(await passed_bounds(over, world, database_url)) >= {
            "upkeep",
            "posts and cancels",
            "uploaded batch",
            "junk files",
            "silent bodies",
            "idle connections",
            "newcomers together",
        }, over.timeline.as_json()


async def _each_attack_was_met(over: Campaign) -> None:
    """An attack that never got so far as to be refused shows nothing."""
    outcomes = over.timeline.outcome_counts()
    assert set(outcomes) == {attack.name for attack in over.attacks}
    for attack, refusal in {
        "upkeep": "429 busy",
        "posts on one balance": "409 InsufficientBalance",
        "posts and cancels": "429 busy",
        "junk files": "429 busy",
        "silent bodies": "408",
    }.items():
        assert any(refusal in outcome for outcome in outcomes[attack]), outcomes
    # Lines over the budget wait: some of the batch were posted, not all.
    batches = over.attacks.target.wallets["uploaded batch"]
    posted = await over.connection.fetchval("select count(*) from jobs where owner = any($1::bytea[])", batches)
    assert 0 < posted < over.attacks.batch.lines * len(batches)


async def _transactions_are_fit_for_the_chain(over: Campaign) -> None:
    fetchval = over.connection.fetchval
    assert await fetchval("select max(gas) from relay_txs") <= TX_GAS_CAP
    assert await fetchval("select max(max_tip) from relay_tx_versions") <= over.config.relay_max_tip_gwei * 10**9
    assert await fetchval("select max(max_fee) from relay_tx_versions") <= over.config.relay_max_fee_gwei * 10**9
    assert await fetchval("select count(*) from relay_txs where purpose <> 'relay'") == 0
    cancelled_again = (
        "select count(*) from (select subject from relays where kind = 'cancel' and state = 'mined'"
        " group by subject having count(*) > 1) as again"
    )
    assert await fetchval(cancelled_again) == 0
    reserve = over.config.relay_reserve_gas * over.config.relay_max_fee_gwei * 10**9
    account = await fetchval("select account from relay_txs limit 1")
    async with open_rpc(over.world.anvil.rpc_url) as rpc:
        assert int(await rpc.call_as(str, "eth_getBalance", hex_of(account), "latest"), 16) > reserve


def _honest_are_served(over: Campaign) -> None:
    assert all(buyer.jobs for buyer in over.meanwhile)
    for times in ("posts", "jobs"):
        alone = max(took for buyer in over.baseline for took in getattr(buyer, times))
        beside = max(took for buyer in over.meanwhile for took in getattr(buyer, times))
        assert beside <= 2 * alone + LATE, f"{times}: {beside:.1f} s beside attacks, {alone:.1f} s before"


async def _until_nothing_is_under_way(over: Campaign) -> None:
    with anyio.fail_after(30):
        while await over.connection.fetchval("select count(*) from relays where state in ('queued', 'signed')"):  # noqa: ASYNC110 - the event is in another process
            await anyio.sleep(0.05)
