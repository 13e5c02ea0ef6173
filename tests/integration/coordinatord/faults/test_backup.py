"""The page on backup and restore, followed to the letter: a machine and its database are lost and come back from a
backup that was taken under a working coordinator, and a database is lost without any."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from devnet.postgres import Postgres
from tests.integration.coordinatord.faults.deployment import Deployment, StartDeployment
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.stage import until
from tests.support.fakes.page_shell import chapter

pytestmark = pytest.mark.timeout(400)

PROJECT = Path(__file__).parents[4]
PAGE = PROJECT / "docs" / "operators" / "maintenance.md"
SETTINGS = PROJECT / "config" / "postgresql" / "coordinatord.conf"


async def every_job_is_told_of(deployment: Deployment) -> None:
    for job in deployment.load.posted:
        # A ready coordinator may lack the latest blocks.
        answer = await until(partial(deployment.http.get, f"/v1/jobs/0x{job.hex()}"), 200)
        assert answer.json()["status"] == "queued"


@pytest.mark.long
async def test_lost_machine_and_database_are_restored(
    start_deployment: StartDeployment, setup: MarketSetup, postgres: Postgres
) -> None:
    (backup,) = chapter(PAGE, "Backup")
    stop, database, start = chapter(PAGE, "Restore")
    (without,) = chapter(PAGE, "Without a backup")
    name = setup.database_url.rpartition("/")[2]
    variables = {"ADMIN_URL": postgres.url("postgres"), "OWNER_ROLE": "devnet"}
    async with start_deployment(variables, processes=1, posts=0) as deployment:
        client = setup.party(deployment.http, setup.world.wallets.with_role("client")[1])
        await client.sign_in()
        uploaded = (await client.upload("input", client.container(b"kept"))).json()["id"]
        await deployment.buy()
        await deployment.follow(backup)
        await deployment.buy()  # not in the backup
        key = deployment.credential("relayer_key")

        await deployment.follow("systemctl stop $UNITS\n")
        await postgres.execute(f"drop database {name} with (force)")
        shutil.rmtree(deployment.root / "etc" / "coordinatord")
        for block in (stop, database):
            await deployment.follow(block)
        assert deployment.credential("relayer_key") == key
        told = await deployment.follow(start)
        assert "no migrations to apply" in told
        assert "nothing is wrong" in told
        await every_job_is_told_of(deployment)
        assert (await client.read_file(uploaded)).status_code == 200  # its session and upload still exist

        await deployment.follow("systemctl stop $UNITS\n")
        await postgres.execute(f"drop database {name} with (force)")
        assert "the database is empty" in await deployment.follow(without)
        await every_job_is_told_of(deployment)
        assert (await client.read_file(uploaded)).status_code == 401
        await client.sign_in()
        assert (await client.read_file(uploaded)).status_code == 404
        await deployment.buy()  # the relayer continues with the nonces of the chain


async def test_every_documented_setting_is_one_that_the_server_takes(postgres: Postgres) -> None:
    lines = SETTINGS.read_text(encoding="utf-8").splitlines()
    settings = [line.partition(" = ")[::2] for line in lines if line and not line.startswith("#")]
    assert len(settings) > 10
    try:
        for name, value in settings:
            await postgres.execute(f"alter system set {name} = '{value}'")
    finally:
        await postgres.execute("alter system reset all")
