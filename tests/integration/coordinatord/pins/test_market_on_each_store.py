"""A complete coordinator over plain S3 and over Kubo: orders, uploads, results, batches and the janitor's removals."""

import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from common.cid import cid_of
from common.scalars import base64_of
from coordinatord.storage.pins.store import MAX_SINGLE_REQUEST_BYTES
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged, until
from tests.support.fakes.kubo import KuboNode, running_kubo
from tests.support.fakes.plain_s3 import PlainS3, running_plain_s3

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("server", ["s3", "kubo"], indirect=True)]


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PlainS3 | KuboNode]:
    if request.param == "s3":
        async with running_plain_s3(tmp_path / "s3") as s3:
            yield s3
    else:
        async with running_kubo(KuboNode()) as node:
            yield node


@pytest.fixture
async def stage(server: PlainS3 | KuboNode, world: World, database_url: str) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url, **server.settings), []) as stage:
        yield stage


async def test_what_the_chain_names_is_served_by_its_content_id(
    stage: Stage, server: PlainS3 | KuboNode, client: Party, provider: Party
) -> None:
    container = client.container(b"inline")
    posted = await client.post(container=container)
    assert posted["task_cid"] == str(cid_of(container))
    assert server.served(str(posted["task_cid"])) == container
    job = str(posted["job_id"])
    assert (await provider.run(provider.claim(job))).status_code == 201

    large = os.urandom(MAX_SINGLE_REQUEST_BYTES + 1)
    uploaded = (await provider.upload("result", large)).json()
    assert server.served(uploaded["svc"]["cid"]) == large
    settled = await provider.run(provider.settle(job, result_cid=uploaded["svc"]["cid"]))
    assert settled.status_code == 201, settled.text
    assert (await stage.http.get(f"/v1/jobs/{job}")).json()["result_cid"] == uploaded["svc"]["cid"]
    content = await provider.read_file(uploaded["id"], "/content")
    assert content.content == large


async def test_removing_refused_content_keeps_another_upload(
    stage: Stage, server: PlainS3 | KuboNode, client: Party, provider: Party, rival: Party
) -> None:
    """A stranger uploads the bytes of a settled result, and the janitor removes that upload."""
    job = str((await client.post())["job_id"])
    assert (await provider.run(provider.claim(job))).status_code == 201
    settled = await provider.run(provider.settle(job, result=base64_of(b"the sealed result")))
    cid = str(settled.json()["result_cid"])
    copied = (await rival.upload("result", b"the sealed result")).json()
    assert copied["svc"]["cid"] == cid
    await stage.execute("update files set expires_at = clock_timestamp() - interval '1 second'")
    await stage.sweep()
    assert await stage.fetchval("select count(*) from files") == 0
    assert server.served(cid) == b"the sealed result"
    assert await stage.fetchval("select count(*) from pinned_keys where cid = $1", cid) == 1


async def test_batch_is_read_and_its_files_are_written(stage: Stage, server: PlainS3 | KuboNode, client: Party) -> None:
    await client.sign_in()
    batching = await Batching.of(stage, client)
    bodies = [await client.paid() for _ in range(2)]
    batch = await batching.create(*bodies, b"{}")
    for body in bodies:
        assert (await until(partial(stage.http.get, f"/v1/jobs/{body['job_id']}"), 200)).status_code == 200
        assert (
            await stage.http.post(f"/v1/jobs/{body['job_id']}/cancel", json=client.cancel(body["job_id"]))
        ).is_success
    ended = await batching.until(batch["id"], status="completed", counts=(0, 3, 3))
    errors = await batching.lines(ended["error_file_id"])
    assert len(errors) == 3
    files = await stage.fetchval("select array_agg(cid) from files where cid is not null")
    assert isinstance(files, list)
    assert len(files) == 2
    assert all(server.served(cid) for cid in files)
