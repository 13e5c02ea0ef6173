"""A coordinator whose node is slow for callers, and one with two nodes of which one dies."""

import re
from pathlib import Path

import anyio
import httpx
import pytest

from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.support.faults.rpc_proxy import ANY, Hang, HttpStatus, rpc_proxy

QUESTIONS = 100


async def test_callers_slow_node_reads_do_not_delay_the_index(setup: MarketSetup) -> None:
    anvil = setup.world.anvil
    async with (
        rpc_proxy(anvil.rpc_url) as node,
        setup.running_coordinator(RPC_URL=node.url) as (coordinator, _),
        httpx.AsyncClient(
            base_url=coordinator.base_url, trust_env=False, timeout=60, limits=httpx.Limits(max_connections=200)
        ) as http,
        anyio.create_task_group() as strangers,
    ):
        with node.fault(Hang("eth_gasPrice")):  # only GET /evm/chain uses it
            for _ in range(QUESTIONS):
                strangers.start_soon(http.get, "/evm/chain")
            with anyio.fail_after(60):
                while not node.seen("eth_gasPrice"):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.01)
                await anvil.call("evm_mine")
                head = int(await anvil.call("eth_blockNumber"), 16)
                state = {"cursor": "0"}
                while int(state["cursor"]) < head:
                    answer = await http.get("/readyz")
                    state = answer.json()
                    assert answer.status_code == 200, state
                    await anyio.sleep(0.05)
        strangers.cancel_scope.cancel()


KEY = "a-key-in-the-address-of-a-node"


async def told(coordinator_metrics: str, name: str) -> dict[str, float]:
    """Return the metric of each node."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(coordinator_metrics)).text
    assert KEY not in text
    return {node: float(value) for node, value in re.findall(rf'^{name}{{node="(.+)"}} (\S+)$', text, re.MULTILINE)}


@pytest.mark.long
async def test_market_continues_when_one_of_two_nodes_dies(setup: MarketSetup, tmp_path: Path) -> None:
    jobs: list[str] = []
    log = tmp_path / "log"
    async with rpc_proxy(setup.world.anvil.rpc_url) as first, rpc_proxy(setup.world.anvil.rpc_url) as second:
        urls = {"RPC_URL": f"{first.url}/?key={KEY}", "RPC_URLS": f"{second.url}/?key={KEY}"}
        names = [proxy.url.removeprefix("http://") for proxy in (first, second)]
        with log.open("wb") as errors:
            running = setup.running_coordinator(timeout_s=60, errors=errors.fileno(), LOG_LEVEL="debug", **urls)
            async with running as (coordinator, http):
                client = setup.party(http)
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
    assert await setup.violations(promised) == []
