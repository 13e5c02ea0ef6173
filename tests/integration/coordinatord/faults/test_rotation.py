"""The page on changing keys, followed to the letter while coordinators serve clients: two of them where the page says
that none has to wait for another, one where the steps are the same for each."""

import os
import re
import secrets
from pathlib import Path

import asyncpg
import pytest
from eth_utils import to_checksum_address

from common.box import PublicKey
from common.key_derivation import escrow_key
from common.secp256k1 import Wallet
from devnet.contracts import connect_to_chain, contract_at
from devnet.pins import BUCKET
from devnet.ports import pick_free
from devnet.postgres import Postgres
from devnet.world import World
from tests.integration.coordinatord.faults.deployment import PAGE, Deployment, StartDeployment
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.escrows import claimed, code, opened, released
from tests.support.cid_store import running_cid_store
from tests.support.fakes.page_shell import chapter, way_back

pytestmark = pytest.mark.timeout(400)

OPERATOR = "0a" * 32
# Rotating there and back doubles the restarts. Chapters of one process always do it, the others only in `make
# rotation-check`.
THERE_AND_BACK = os.environ.get("ROTATION_CHECK") == "1"


@pytest.fixture
def database_template() -> str:
    """Coordinators begin with an empty database, because the role that creates tables owns them."""
    return "template1"


def test_listed_chapters_exist_and_have_steps() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = text.partition("\n## Changing keys\n")[2].partition("\n## ")[0]
    linked = re.findall(r"\]\(#([a-z-]+)\)", listed)
    headings = {re.sub(r"[^a-z ]", "", h.lower()).replace(" ", "-"): h for h in re.findall(r"^## (.*)$", text, re.M)}
    assert len(linked) == 4
    for name in linked:
        assert chapter(PAGE, headings[name])
        assert way_back(PAGE, headings[name]).strip()


@pytest.mark.long
async def test_relayer_is_replaced_by_a_new_account(start_deployment: StartDeployment, world: World) -> None:
    make, grant, change, look, end = chapter(PAGE, "The relayer's key")
    old = Wallet(bytes.fromhex(world.wallets.with_role("relayer")[0].private_key[2:])).address
    async with start_deployment() as deployment:
        printed = await deployment.follow(make)
        new = re.findall(r"0x[0-9a-fA-F]{40}", printed)[0]
        await world.anvil.call("anvil_setBalance", new, hex(10**19))
        await deployment.follow(grant)
        assert f"relayer           {new.lower()}" in await deployment.follow(change)
        await deployment.buy()
        table = (await deployment.follow(look)).splitlines()
        (current,) = [line for line in table if line.startswith(new.lower())]
        (former,) = [line for line in table if line.startswith(f"0x{old.hex()}")]
        assert current.endswith("  relays")
        assert "0 pending" in former
        assert "NOT ENDED" in former
        if THERE_AND_BACK:
            back = way_back(PAGE, "The relayer's key")
            shown = await deployment.follow(back + "tell keys\n")
            assert f"relayer           0x{old.hex()}" in shown
            await deployment.buy()
            await deployment.follow(change)
        shown = await deployment.follow(end)
        assert f"relayer           {new.lower()}" in shown
        assert {name for name in deployment.credentials() if "." in name} == set()
        async with connect_to_chain(world.anvil.rpc_url) as chain:
            registry = contract_at(chain, "JobRegistry", world.market.jobs)
            trusted = [
                await registry.functions.isRelayer(to_checksum_address(a)).call() for a in (new, f"0x{old.hex()}")
            ]
        assert trusted == [True, False]


@pytest.mark.long
async def test_escrow_key_rotation_opens_with_both_keys(start_deployment: StartDeployment, setup: MarketSetup) -> None:
    add, announce, look, end = chapter(PAGE, "The escrow's key")
    old = escrow_key(bytes.fromhex(OPERATOR)).public
    async with start_deployment(processes=1) as deployment:
        client = setup.party(deployment.http, setup.world.wallets.with_role("client")[1])
        provider = setup.party(deployment.http, "provider")
        await provider.sign_in("provider")
        former = client.container(b"sealed to the former", old)
        job = await claimed(client, provider, former)
        announced = (await deployment.follow(add)).split()[-1]
        assert await _key(deployment) == old.raw.hex()
        await deployment.follow(announce)
        answer = (await deployment.follow(look)).partition("{")
        assert f"escrow, announced {announced}" in answer[0]
        assert f'"escrow_public_key":"{announced}"' in answer[2].replace(" ", "")
        await deployment.follow(way_back(PAGE, "The escrow's key"))
        assert await _key(deployment) == old.raw.hex()
        await deployment.follow(announce)
        assert await _key(deployment) == announced
        current = client.container(b"sealed to the new", PublicKey(bytes.fromhex(announced)))
        other = await claimed(client, provider, current)
        for name, container in ((job, former), (other, current)):
            release = await released(deployment.http, provider, name, container)
            assert opened(release, container).startswith(b"sealed to")
        shown = await deployment.follow(end)
        assert shown.count("escrow, ") == 1
        assert deployment.credential("operator_key") not in ("", OPERATOR)
        assert opened(await released(deployment.http, provider, other, current), current) == b"sealed to the new"
        assert code(await released(deployment.http, provider, job, former))[0] == 400  # no held key opens it
        assert {name for name in deployment.credentials() if "." in name} == set()


async def _key(deployment: Deployment) -> str:
    return str((await deployment.http.get("/key")).json()["escrow_public_key"])


@pytest.mark.long
async def test_pin_store_key_rotation_keeps_uploads_working(
    start_deployment: StartDeployment, world: World, tmp_path: Path
) -> None:
    change, look, end = chapter(PAGE, "The pin store's key")
    old, new = {"OLD": secrets.token_urlsafe()}, {"NEW": secrets.token_urlsafe()}
    port, content = pick_free(), tmp_path / "pins"
    content.mkdir()
    for name, value in (("key", "NEW"), ("secret", new["NEW"])):
        (tmp_path / name).write_text(value)
    variables = {"NEW_STORE_KEY": str(tmp_path / "key"), "NEW_STORE_SECRET": str(tmp_path / "secret")}
    store = {"PIN_STORE_ENDPOINT": f"http://127.0.0.1:{port}", "PIN_STORE_KEY": "OLD", "PIN_STORE_SECRET": old["OLD"]}
    async with running_cid_store(port, content, tmp_path, old | new) as store_service:
        async with start_deployment(variables, processes=1, **store, PIN_STORE_BUCKET=BUCKET) as deployment:
            assert deployment.shell.environment["URL"] != store_service.endpoint
            await deployment.follow(change)
            await deployment.follow(look)
            assert deployment.credential("pin_store_key.former") == "OLD"
            await deployment.follow(way_back(PAGE, "The pin store's key"))
            restored = [deployment.credential(name) for name in ("pin_store_key", "pin_store_secret")]
            assert restored == ["OLD", old["OLD"]]
            await deployment.buy()
            await deployment.follow(change)
            await deployment.follow(end)
            await deployment.buy()
            used = [deployment.credential(name) for name in ("pin_store_key", "pin_store_secret")]
            assert used == ["NEW", new["NEW"]]
        log = "".join(file.read_text() for file in (tmp_path / "root/var/log").iterdir())
        assert "store_rejected" not in log


@pytest.mark.long
async def test_database_is_used_by_a_new_login_that_acts_as_the_owner(
    start_deployment: StartDeployment, postgres: Postgres, database_url: str
) -> None:
    change, look, end = chapter(PAGE, "The database's password")
    owner = f"owner_{secrets.token_hex(4)}"
    database = database_url.rpartition("/")[2]
    await postgres.execute(f"create role {owner} login password 'first'")
    await postgres.execute(f"alter database {database} owner to {owner}")
    place = database_url.partition("@")[2]
    variables = {"ADMIN_URL": database_url, "OWNER_ROLE": owner}
    async with start_deployment(variables, DATABASE_URL=f"postgresql://{owner}:first@{place}") as deployment:
        await deployment.follow(change)
        await deployment.buy()
        logins = dict(line.split("|") for line in (await deployment.follow(look)).split())
        assert owner not in logins
        assert any(login.startswith(f"{owner}_") for login in logins)
        if THERE_AND_BACK:
            await deployment.follow(way_back(PAGE, "The database's password"))
            await deployment.buy()
            assert set(dict(line.split("|") for line in (await deployment.follow(look)).split())) == {owner}
            await deployment.follow(change)
        await deployment.follow(end)
        await deployment.buy()
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="not permitted to log in"):
        await asyncpg.connect(f"postgresql://{owner}:first@{place}")
    connection = await asyncpg.connect(database_url)
    owners = "select distinct tableowner from pg_tables where schemaname = 'public'"
    assert [row[0] for row in await connection.fetch(owners)] == [owner]
    await connection.close()
    await _drop(postgres, database_url, owner)


async def _drop(postgres: Postgres, database_url: str, owner: str) -> None:
    """Roles outlive a test's database."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"reassign owned by {owner} to current_user; drop owned by {owner}")
    logins = await connection.fetch("select rolname from pg_roles where rolname like $1", f"{owner}%")
    await connection.close()
    for login in sorted((row[0] for row in logins), reverse=True):
        await postgres.execute(f'drop role "{login}"')
