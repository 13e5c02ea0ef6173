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
from tests.integration.coordinatord.faults.deployment import PAGE, Deployed, Deployment
from tests.integration.coordinatord.faults.place import Place
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
async def test_relayer_is_replaced_by_a_new_account(deployed: Deployed, world: World) -> None:
    make, grant, change, look, end = chapter(PAGE, "The relayer's key")
    old = Wallet(bytes.fromhex(world.wallets.with_role("relayer")[0].private_key[2:])).address
    async with deployed() as on:
        printed = await on.follow(make)
        new = re.findall(r"0x[0-9a-fA-F]{40}", printed)[0]
        await world.anvil.call("anvil_setBalance", new, hex(10**19))
        await on.follow(grant)
        assert f"relayer           {new.lower()}" in await on.follow(change)
        await on.buy()
        table = (await on.follow(look)).splitlines()
        (current,) = [line for line in table if line.startswith(new.lower())]
        (former,) = [line for line in table if line.startswith(f"0x{old.hex()}")]
        assert current.endswith("  relays")
        assert "0 pending" in former
        assert "NOT ENDED" in former
        if THERE_AND_BACK:
            back = way_back(PAGE, "The relayer's key")
            shown = await on.follow(back + "tell keys\n")
            assert f"relayer           0x{old.hex()}" in shown
            await on.buy()
            await on.follow(change)
        shown = await on.follow(end)
        assert f"relayer           {new.lower()}" in shown
        assert {name for name in on.credentials() if "." in name} == set()
        async with connect_to_chain(world.anvil.rpc_url) as chain:
            registry = contract_at(chain, "JobRegistry", world.market.jobs)
            trusted = [
                await registry.functions.isRelayer(to_checksum_address(a)).call() for a in (new, f"0x{old.hex()}")
            ]
        assert trusted == [True, False]


@pytest.mark.long
async def test_escrow_key_rotation_opens_with_both_keys(deployed: Deployed, place: Place) -> None:
    add, announce, look, end = chapter(PAGE, "The escrow's key")
    old = escrow_key(bytes.fromhex(OPERATOR)).public
    async with deployed(processes=1) as on:
        client = place.party(on.http, place.world.wallets.with_role("client")[1])
        provider = place.party(on.http, "provider")
        await provider.sign_in("provider")
        former = client.container(b"sealed to the former", old)
        job = await claimed(client, provider, former)
        announced = (await on.follow(add)).split()[-1]
        assert await _key(on) == old.raw.hex()
        await on.follow(announce)
        answer = (await on.follow(look)).partition("{")
        assert f"escrow, announced {announced}" in answer[0]
        assert f'"escrow_public_key":"{announced}"' in answer[2].replace(" ", "")
        await on.follow(way_back(PAGE, "The escrow's key"))
        assert await _key(on) == old.raw.hex()
        await on.follow(announce)
        assert await _key(on) == announced
        current = client.container(b"sealed to the new", PublicKey(bytes.fromhex(announced)))
        other = await claimed(client, provider, current)
        for name, container in ((job, former), (other, current)):
            assert opened(await released(on.http, provider, name, container), container).startswith(b"sealed to")
        shown = await on.follow(end)
        assert shown.count("escrow, ") == 1
        assert on.credential("operator_key") not in ("", OPERATOR)
        assert opened(await released(on.http, provider, other, current), current) == b"sealed to the new"
        assert code(await released(on.http, provider, job, former))[0] == 400  # no held key opens it
        assert {name for name in on.credentials() if "." in name} == set()


async def _key(on: Deployment) -> str:
    return str((await on.http.get("/key")).json()["escrow_public_key"])


@pytest.mark.long
async def test_pin_store_key_rotation_keeps_uploads_working(deployed: Deployed, world: World, tmp_path: Path) -> None:
    change, look, end = chapter(PAGE, "The pin store's key")
    old, new = {"OLD": secrets.token_urlsafe()}, {"NEW": secrets.token_urlsafe()}
    port, content = pick_free(), tmp_path / "pins"
    content.mkdir()
    for name, value in (("key", "NEW"), ("secret", new["NEW"])):
        (tmp_path / name).write_text(value)
    variables = {"NEW_STORE_KEY": str(tmp_path / "key"), "NEW_STORE_SECRET": str(tmp_path / "secret")}
    store = {"PIN_STORE_ENDPOINT": f"http://127.0.0.1:{port}", "PIN_STORE_KEY": "OLD", "PIN_STORE_SECRET": old["OLD"]}
    async with running_cid_store(port, content, tmp_path, old | new) as store_service:
        async with deployed(variables, processes=1, **store, PIN_STORE_BUCKET=BUCKET) as on:
            assert on.shell.environment["URL"] != store_service.endpoint
            await on.follow(change)
            await on.follow(look)
            assert on.credential("pin_store_key.former") == "OLD"
            await on.follow(way_back(PAGE, "The pin store's key"))
            assert [on.credential(name) for name in ("pin_store_key", "pin_store_secret")] == ["OLD", old["OLD"]]
            await on.buy()
            await on.follow(change)
            await on.follow(end)
            await on.buy()
            used = [on.credential(name) for name in ("pin_store_key", "pin_store_secret")]
            assert used == ["NEW", new["NEW"]]
        log = "".join(file.read_text() for file in (tmp_path / "root/var/log").iterdir())
        assert "store_rejected" not in log


@pytest.mark.long
async def test_database_is_used_by_a_new_login_that_acts_as_the_owner(
    deployed: Deployed, postgres: Postgres, database_url: str
) -> None:
    change, look, end = chapter(PAGE, "The database's password")
    owner = f"owner_{secrets.token_hex(4)}"
    database = database_url.rpartition("/")[2]
    await postgres.execute(f"create role {owner} login password 'first'")
    await postgres.execute(f"alter database {database} owner to {owner}")
    place = database_url.partition("@")[2]
    variables = {"ADMIN_URL": database_url, "OWNER_ROLE": owner}
    async with deployed(variables, DATABASE_URL=f"postgresql://{owner}:first@{place}") as on:
        await on.follow(change)
        await on.buy()
        logins = dict(line.split("|") for line in (await on.follow(look)).split())
        assert owner not in logins
        assert any(login.startswith(f"{owner}_") for login in logins)
        if THERE_AND_BACK:
            await on.follow(way_back(PAGE, "The database's password"))
            await on.buy()
            assert set(dict(line.split("|") for line in (await on.follow(look)).split())) == {owner}
            await on.follow(change)
        await on.follow(end)
        await on.buy()
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
