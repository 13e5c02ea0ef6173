"""A coordinator with two nodes, as operators run it. One node dies, the market continues, and metrics name the host."""

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import pytest

from common.address_book import AddressBook
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import environment
from tests.support.faults.rpc_proxy import ANY, HttpStatus, rpc_proxy

pytestmark = pytest.mark.anyio

KEY = "a-key-in-the-address-of-a-node"


async def told(coordinator_metrics: str, name: str) -> dict[str, float]:
    """Return the metric of each node."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(coordinator_metrics)).text
    assert KEY not in text
    return {node: float(value) for node, value in re.findall(rf'^{name}{{node="(.+)"}} (\S+)$', text, re.MULTILINE)}


@pytest.mark.long
async def test_market_continues_when_one_of_two_nodes_dies(
    *,
    world: World,
    database_url: str,
    book: AddressBook,
    party_at: Callable[[DevWallet, httpx.AsyncClient], Party],
    tmp_path: Path,
) -> None:
    jobs: list[str] = []
    log = tmp_path / "log"
    async with rpc_proxy(world.anvil.rpc_url) as first, rpc_proxy(world.anvil.rpc_url) as second:
        urls = {"RPC_URL": f"{first.url}/?key={KEY}", "RPC_URLS": f"{second.url}/?key={KEY}"}
        names = [proxy.url.removeprefix("http://") for proxy in (first, second)]
        given = environment(world, database_url, LOG_LEVEL="debug", **urls)
        with log.open("wb") as errors:
            async with (
                running(given, pick_free(), pick_free(), errors=errors.fileno()) as coordinator,
                httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=60) as http,
            ):
                client = party_at(world.wallets.with_role("client")[0], http)
                jobs.append((await client.post())["job_id"])
                assert await told(coordinator.metrics_url, "coordinatord_node_up") == dict.fromkeys(names, 1.0)
                assert first.seen("eth_sendRawTransaction") == second.seen("eth_sendRawTransaction") == 1
                assert second.seen("eth_getLogs") > 0
                with first.fault(HttpStatus(ANY, 503)):
                    jobs.append((await client.post())["job_id"])
                    with anyio.fail_after(60):
                        while (await http.get(f"/evm/jobs/{jobs[-1]}")).status_code != 200:  # noqa: ASYNC110
                            await anyio.sleep(0.1)
                    assert (await http.get("/readyz")).status_code == 200
                    up = await told(coordinator.metrics_url, "coordinatord_node_up")
                    assert up == {names[0]: 0.0, names[1]: 1.0}
                jobs.append((await client.post())["job_id"])
                with anyio.fail_after(60):
                    while not (await told(coordinator.metrics_url, "coordinatord_node_up"))[names[0]]:  # noqa: ASYNC110
                        await anyio.sleep(0.1)
                coordinator.terminate()
                assert await coordinator.exit_status() == 0
    assert KEY not in log.read_text()
    promised = {bytes.fromhex(job[2:]) for job in jobs}
    assert await all_violations(database_url, world.anvil.rpc_url, book, promised=promised) == []
