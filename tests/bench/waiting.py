"""Waiting by events compared with waiting by polls: how soon an idle provider claims a posted job, and the
coordinator's work per job until it ends.

The market is the devnet's, with two providers. The devnet's provider holds polls open. The other polls every half
second, through a proxy that hides events (`without_events.py`). On a chain that mines each transaction, the time
excludes the wait for a block. With blocks of a second, a polling provider hears of a post before its block as well, so
only the first provider is measured. Work per job is counted with blocks of two seconds, as on rollups. `WAITED_JOBS`
and `CLAIMED_JOBS` make the runs smaller.
"""

import os
import shlex
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families

from devnet import client_environment, manifest
from devnet.ports import pick_free
from devnet.provider import running_provider
from devnet.world import Devnet
from svc.client import Client
from svc.records import Job
from tests.bench.machine import slowdown
from tests.bench.provider import cpu_seconds
from tests.bench.row import FEWEST, Row
from tests.bench.shared import WORLD, Ground
from tests.bench.without_events import without_events

CLAIMED: Final = int(os.environ.get("CLAIMED_JOBS", "5"))  # at one provider, on a chain that mines at once
WITH_BLOCKS: Final = max(FEWEST, CLAIMED // 2)  # the same with blocks of a second
WAITED: Final = int(os.environ.get("WAITED_JOBS", "24"))  # at a time
_TURNS: Final = FEWEST  # of so many
_WITHIN: Final = 150.0  # ms
_WITHIN_BLOCKS: Final = 50.0  # the same where the claim comes right behind the post, in its block
_BLOCK: Final = 1
_ROLLUP_BLOCK: Final = 2
_IDLE_AGAIN: Final = 0.5  # seconds until a provider waits for work again
_POLLING: Final = "polling"  # the folder of the provider that polls
_SAID: Final = 0.5  # seconds until the cost of a closed stream is counted


@attrs.frozen
class _Spent:
    """Coordinator's work per job until all jobs had ended."""

    requests: float
    cpu_ms: float  # of the machine of the targets: this one may be faster while one way is measured, and slower later


@attrs.frozen
class _Side:
    """Measurements of one way to wait."""

    at_once: list[float]  # ms from the response to a post until its claim is reported, on a chain that mines at once
    spent: list[_Spent]


async def _claimed_ms(client: Client, provider: int) -> float:
    """Return the time from the response to a post until an event reports its claim."""
    order = await client.prepare("demo/text-small", "sealed jobs", window="async", provider=provider)
    posted = await client.submit(order, max_amount=10**6, final=True)
    began = anyio.current_time()
    told: list[float] = []

    def seen(job: Job) -> None:
        if job.status != "queued":
            told.append((anyio.current_time() - began) * 1000)

    await client.wait(posted.job_id, on_change=seen)
    await anyio.sleep(_IDLE_AGAIN)
    return told[0]


async def _spent(up: Devnet, client: Client, provider: int, turns: int) -> list[_Spent]:
    """By each of many jobs that are waited for at a time, in each turn. The client has asked for jobs before."""

    async def one() -> None:
        order = await client.prepare("demo/text-small", "sealed jobs", window="async", provider=provider)
        posted = await client.submit(order, max_amount=10**6, final=True)
        await client.wait(posted.job_id)

    pid = up.coordinator.child.pid
    found = []
    for _ in range(turns):
        requests, cpu = await _answered(up), cpu_seconds(pid)
        async with slowdown() as times_slower:
            async with anyio.create_task_group() as tasks:
                for _ in range(WAITED):
                    tasks.start_soon(one)
            await anyio.sleep(_SAID)
        seconds = (cpu_seconds(pid) - cpu) / times_slower()
        found.append(_Spent((await _answered(up) - requests) / WAITED, 1000 * seconds / WAITED))
    return found


async def _answered(up: Devnet) -> float:
    """Requests that the coordinator answered so far."""
    async with httpx.AsyncClient(trust_env=False) as http:
        told = (await http.get(up.coordinator.metrics_url)).text
    samples = [sample for family in text_string_to_metric_families(told) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "coordinatord_http_request_seconds_count")


@asynccontextmanager
async def _polling_provider(up: Devnet, proxied: str, folder: Path) -> AsyncIterator[int]:
    world, account = up.world, up.world.cast.with_role("provider")[1]
    async with running_provider(
        account=account,
        coordinator_url=proxied,
        rpc_url=world.anvil.rpc_url,
        gateway=world.pins.gateway,
        address_book=world.market.address_book,
        metrics_port=pick_free(),
        directory=folder,
        logs=folder,
    ):
        yield world.market.provider_ids[account.address]


async def _measured(on: Ground) -> tuple[_Side, _Side, list[float]]:
    """By events, and by polls; and how soon jobs were claimed by events with blocks of a second."""
    async with on.provided(block_time=None) as up:
        manifest.write(on.folder / "devnet.json", up)
        exported = (shlex.split(line)[1].partition("=") for line in client_environment.exports(on.folder).splitlines())
        environment = {name: value for name, _, value in exported}
        ours = up.world.market.provider_ids[up.world.cast.demo_provider.address]
        async with (
            without_events(up.coordinator.base_url, pick_free()) as proxied,
            Client(environment=environment, on_first_use=lambda _: None) as client,
            Client(proxied, environment=environment, on_first_use=lambda _: None) as poller,
        ):
            claimed = partial(_claimed_ms, client)
            async with _polling_provider(up, proxied, on.room(_POLLING)) as other:
                at_once = [(await claimed(ours), await claimed(other)) for _ in range(CLAIMED)]
                await _claimed_ms(poller, other)  # the deployment and the models are read once
                await up.world.anvil.mine_every(_BLOCK)
                with_blocks = [await claimed(ours) for _ in range(WITH_BLOCKS)]
                await up.world.anvil.mine_every(_ROLLUP_BLOCK)
                by_polls = await _spent(up, poller, other, _TURNS - 1)
            by_events = await _spent(up, client, ours, _TURNS)
    return (
        _Side([first for first, _ in at_once], by_events),
        _Side([second for _, second in at_once], by_polls),
        with_blocks,
    )


def rows() -> list[Row]:
    events, polls, with_blocks = WORLD.run(_measured)
    what = "from posted to claimed by an idle provider"
    waited = f"{WAITED} jobs waited for at a time, blocks of {_ROLLUP_BLOCK} s"
    polled = statistics.median(polls.at_once)
    return [
        Row.of(what, events.at_once, "ms", f"{_WITHIN:g} ms and no block", _WITHIN, at_most=1, absolute="clock"),
        Row.of(what, events.at_once, "ms", f"polls every 0.5 s ({polled:,.0f} ms)", polled, at_most=0.9),
        Row.of(
            f"{what}, blocks of {_BLOCK} s",
            with_blocks,
            "ms",
            f"{_WITHIN_BLOCKS:g} ms and no further block",
            _WITHIN_BLOCKS,
            at_most=1,
            absolute="clock",
        ),
        Row.of(
            f"requests by each of {waited}",
            [spent.requests for spent in events.spent],
            "requests",
            "by polls every 0.5 s",
            statistics.median(spent.requests for spent in polls.spent),
            at_most=0.8,
        ),
        Row.of(
            f"coordinatord's CPU by each of {waited}",
            [spent.cpu_ms for spent in events.spent],
            "ms",
            "by polls every 0.5 s",
            statistics.median(spent.cpu_ms for spent in polls.spent),
            at_most=1,
        ),
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
