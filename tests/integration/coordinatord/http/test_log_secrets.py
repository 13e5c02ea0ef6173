"""A coordinator's log contains no secrets, even at the most verbose level."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from common.domains import Domains
from devnet.accounts import DevWallet
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.running import running
from tests.integration.coordinatord.scene.stage import configured, environment

pytestmark = pytest.mark.anyio

PATH_KEY = "a-key-in-the-address-of-the-node"


@pytest.fixture
def at(world: World, database_url: str) -> Callable[[DevWallet, httpx.AsyncClient], Party]:
    book = configured(world, database_url).addresses

    def make(wallet: DevWallet, http: httpx.AsyncClient) -> Party:
        return Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)

    return make


async def test_log_at_debug_level_holds_no_secret(
    world: World,
    database_url: str,
    at: Callable[[DevWallet, httpx.AsyncClient], Party],
    tmp_path: Path,
) -> None:
    settings = environment(world, database_url, LOG_LEVEL="debug", RPC_URL=f"{world.anvil.rpc_url}/?key={PATH_KEY}")
    log = tmp_path / "log"
    said: list[str] = []
    with log.open("wb") as errors:
        async with (
            running(settings, pick_free(), pick_free(), errors=errors.fileno()) as coordinator,
            httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
        ):
            client, provider = (at(world.wallets.with_role(role)[0], http) for role in ("client", "provider"))
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
