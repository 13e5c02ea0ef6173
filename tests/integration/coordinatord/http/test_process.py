"""A coordinator as a process: its start, end and metrics, and no secret in its log."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from devnet.ports import LOOPBACK, pick_free
from devnet.world import World
from tests.integration.coordinatord.relayer.mining import mining_by_hand, until_pooled
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import Coordinator, running, start, until_ready
from tests.integration.coordinatord.scene.stage import configured, environment, until
from tests.support.faults.tcp_proxy import Trouble, tcp_proxy


@pytest.fixture
async def coordinator(world: World, database_url: str) -> AsyncIterator[Coordinator]:
    async with running(environment(world, database_url), pick_free(), pick_free()) as coordinator:
        yield coordinator


def party_of(world: World, database_url: str, role: str, http: httpx.AsyncClient) -> Party:
    return Party.at(world.wallets.with_role(role)[0], configured(world, database_url).addresses, http)


@pytest.fixture
async def client(world: World, database_url: str, coordinator: Coordinator) -> AsyncIterator[Party]:
    async with httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http:
        yield party_of(world, database_url, "client", http)


async def _until_broadcast(world: World) -> None:
    """Wait for a pending transaction, so that its request is in flight."""
    with anyio.fail_after(60):
        await until_pooled(world.anvil)


async def test_sigterm_drains_requests_and_exits_0(world: World, coordinator: Coordinator, client: Party) -> None:
    body = await client.paid()
    answers: list[httpx.Response] = []

    async def post() -> None:
        answers.append(await client.http.post("/v1/jobs", json=body))

    async def until_stopping() -> None:
        """Wait for readiness to fail while the port still listens."""
        async with httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False) as http:
            while (await http.get("/readyz")).status_code == 200:
                pass

    async with mining_by_hand(world.anvil), anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await _until_broadcast(world)
        coordinator.terminate()
        with anyio.fail_after(60):
            await until_stopping()
        await world.anvil.call("evm_mine")
    assert answers[0].status_code == 201
    assert await coordinator.exit_status() == 0


async def test_metrics_tell_requests_by_route_and_status(coordinator: Coordinator, client: Party) -> None:
    await client.http.get("/v1/jobs/0x" + "12" * 32)
    async with httpx.AsyncClient(trust_env=False) as http:
        metrics = (await http.get(coordinator.metrics_url)).text
        assert (await http.get(coordinator.metrics_url.replace("/metrics", "/other"))).status_code == 404
        page = await http.get(coordinator.metrics_url.replace("/metrics", "/"))
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert 'coordinatord_http_request_seconds_count{method="GET",route="/v1/jobs/{id}",status="404"} 1.0' in metrics
    assert 'coordinatord_database_connections{use="idle"}' in metrics
    assert "coordinatord_index_lag_blocks" in metrics


async def test_idle_coordinator_holds_at_most_150_mib(coordinator: Coordinator) -> None:
    assert coordinator.resident_bytes() <= 150 * 2**20


@pytest.mark.long
async def test_killed_coordinator_finds_its_relay_again_and_posts_once(
    world: World, database_url: str, coordinator: Coordinator, client: Party
) -> None:
    body = await client.paid()

    async def post_in_vain() -> None:
        with pytest.raises(httpx.TransportError):
            await client.http.post("/v1/jobs", json=body)

    async with mining_by_hand(world.anvil):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post_in_vain)
            await _until_broadcast(world)
            coordinator.process.kill()
        await world.anvil.call("evm_mine")
    async with (
        running(environment(world, database_url), pick_free(), pick_free()) as second,
        httpx.AsyncClient(base_url=second.base_url, trust_env=False, timeout=30) as http,
    ):
        found = await until(lambda: http.get(f"/v1/jobs/{body['job_id']}"), 200)  # ready allows a small lag
        assert found.json()["status"] == "queued"
        again = await http.post("/v1/jobs", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "DuplicateJob")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chainId": 1}, b"chainId"),
        ({"tokenDomain": {"name": "Other", "version": "1"}}, b"paytoken"),
        ({"askRegistry": "0x" + "11" * 20}, b"askRegistry"),
    ],
    ids=["another chain", "another token domain", "no contract there"],
)
async def test_boot_stops_at_a_chain_that_is_not_the_address_books(
    world: World, database_url: str, change: dict[str, object], told: bytes
) -> None:
    settings = environment(world, database_url)
    book = json.loads(settings["ADDRESSES_JSON"]) | change
    ports = {"PORT": str(pick_free()), "METRICS_PORT": "0"}
    process = start(settings | ports | {"ADDRESSES_JSON": json.dumps(book)}, errors=subprocess.PIPE)
    _, errors = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 1
    assert told in errors.splitlines()[-1]
    assert b"Traceback" not in errors


async def test_coordinator_waits_for_its_database_at_start(world: World, database_url: str, tmp_path: Path) -> None:
    port, log = pick_free(), tmp_path / "log"
    server = urlsplit(database_url)
    async with tcp_proxy(LOOPBACK, server.port or 0) as database, httpx.AsyncClient(trust_env=False) as http:
        settings = environment(world, database_url.replace(f":{server.port}/", f":{database.port}/"), PORT=port)
        with log.open("wb") as errors, database.trouble(Trouble.REFUSE):
            process = start(settings, errors=errors.fileno())
            with anyio.fail_after(60):
                while b"waiting for the database" not in log.read_bytes():
                    assert process.poll() is None, log.read_text()
                    await anyio.sleep(0.05)
        try:
            await until_ready(Coordinator(process, f"http://{LOOPBACK}:{port}", ""), http)
        finally:
            process.kill()
            process.wait()
            sys.stderr.write(log.read_text())


PATH_KEY = "a-key-in-the-address-of-the-node"


async def test_log_at_debug_level_holds_no_secret(world: World, database_url: str, tmp_path: Path) -> None:
    settings = environment(world, database_url, LOG_LEVEL="debug", RPC_URL=f"{world.anvil.rpc_url}/?key={PATH_KEY}")
    log = tmp_path / "log"
    said: list[str] = []
    with log.open("wb") as errors:
        async with (
            running(settings, pick_free(), pick_free(), errors=errors.fileno()) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
        ):
            client, provider = (party_of(world, database_url, role, http) for role in ("client", "provider"))
            session = await client.session_body()
            assert (await http.post("/auth/session", json=session)).status_code == 200
            await provider.sign_in("provider")
            body = await client.paid()
            assert (await http.post("/v1/jobs", json=body)).status_code == 201
            claim = provider.claim(body["job_id"])
            assert (await provider.run(claim)).status_code == 201
            # Failures log the most: an unreachable node, and refused or invalid requests.
            assert (await http.post("/v1/jobs", json=body)).status_code == 409
            await http.post("/v1/jobs", content=json.dumps(body)[:-5])
            await http.get("/evm/jobs?free=1", headers=provider.authorization)
            said += [session["nonce"], session["signature"], client.token, provider.token, claim["signature"]]
            said += [body[name] for name in ("signature", "auth_sig", "container")]
            coordinator.terminate()
            assert await coordinator.exit_status() == 0
    written = log.read_text(encoding="utf-8")
    secrets = {
        "relayer key": settings["RELAYER_KEY"].removeprefix("0x"),
        "pin store secret": settings["PIN_STORE_SECRET"],
        "database password": database_url.partition("://")[2].partition(":")[2].partition("@")[0],
        "key of the node": PATH_KEY,
        **{f"what was sent, {n}": text.removeprefix("0x") for n, text in enumerate(said) if text},
    }
    assert '"level": "info"' in written
    assert [name for name, secret in secrets.items() if secret in written] == []


async def test_log_of_a_failing_boot_holds_no_secret(world: World, database_url: str, tmp_path: Path) -> None:
    nowhere = database_url.rpartition("@")[0] + f"@127.0.0.1:{pick_free()}/gone"
    node = f"http://127.0.0.1:{pick_free()}/{PATH_KEY}"
    settings = environment(world, nowhere, LOG_LEVEL="debug", RPC_URL=node, startup_timeout_s=2)
    log = tmp_path / "log"
    with log.open("wb") as errors, pytest.raises(AssertionError, match="the coordinator ended"):
        async with running(settings, pick_free(), pick_free(), errors=errors.fileno()):
            pass
    written = log.read_text(encoding="utf-8")
    assert "\ncoordinatord: the database did not answer" in written
    password = nowhere.partition("://")[2].partition(":")[2].partition("@")[0]
    for secret in (password, PATH_KEY, settings["RELAYER_KEY"], settings["PIN_STORE_SECRET"]):
        assert secret not in written
