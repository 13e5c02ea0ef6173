"""Every kind of pin store behind the one port, each against a server that speaks its language: a fake that pins and
returns the content id; rclone's S3, which does not; Kubo's RPC. A complete coordinator works over the last two."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest

from common.cid import cid_of
from common.daemon.secrets import Secret
from common.scalars import base64_of
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import open_http
from coordinatord.run.config import Config
from coordinatord.run.dependencies import open_pin_store
from coordinatord.storage.database.connections import open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.pins.addressed import PlainS3Store
from coordinatord.storage.pins.kubo import KuboStore
from coordinatord.storage.pins.pinned_sql import PinnedKeys
from coordinatord.storage.pins.requests import RequestSigner, StoreRequests
from coordinatord.storage.pins.store import MAX_SINGLE_REQUEST_BYTES, PART_BYTES, PinningStore, PinStore, bucket_url
from devnet.pins import PinStoreService
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged, until
from tests.support.fakes.kubo import KuboNode, running_kubo
from tests.support.fakes.plain_s3 import PlainS3, running_plain_s3

KINDS = ["filebase", "s3", "kubo"]
LARGE = MAX_SINGLE_REQUEST_BYTES + PART_BYTES
of_each = pytest.mark.parametrize("server", ["s3", "kubo"], indirect=True)


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PlainS3 | KuboNode | None]:
    """Start a server of the kind. None for the shared fake that pins."""
    if request.param == "s3":
        async with running_plain_s3(tmp_path / "s3") as s3:
            yield s3
    elif request.param == "kubo":
        async with running_kubo(KuboNode(authorization=("coordinator", "secret"))) as node:
            yield node
    else:
        yield None


@pytest.fixture
async def store(server: PlainS3 | KuboNode | None, world: World, database_url: str) -> AsyncIterator[PinStore]:
    settings = server.settings if server is not None else {}
    async with opened(configured(world, database_url, **settings)) as pins:
        yield pins


def opened(config: Config) -> "_Opened":
    return _Opened(config)


class _Opened:
    """The configured store over a migrated database."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> PinStore:
        url = self._config.database_url.reveal()
        database = await self._stack.enter_async_context(open_database(url, max_size=4))
        async with database.connection() as connection:
            await migrate(connection)
        return await open_pin_store(self._config, PinnedKeys(database), self._stack)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


async def split_into_pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 300_000):
        yield content[at : at + 300_000]


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_content_has_its_import_id_and_reads_back(store: PinStore) -> None:
    small, large = os.urandom(1000), os.urandom(LARGE)
    pinned = await store.put("containers/small one", small)
    assert (pinned.cid, pinned.size) == (str(cid_of(small)), len(small))
    streamed = await store.put_pieces("files/large", split_into_pieces(large))
    assert (streamed.cid, streamed.size) == (str(cid_of(large)), len(large))
    at_hand = await store.put("files/at hand", large)
    assert at_hand.cid == streamed.cid
    assert await store.get("containers/small one") == small
    assert await store.get("files/large") == large
    assert await store.holds("files/large")
    async with store.read(
        "files/large", first=MAX_SINGLE_REQUEST_BYTES - 2, last=MAX_SINGLE_REQUEST_BYTES + 1
    ) as pieces:
        assert (
            b"".join([piece async for piece in pieces])
            == large[MAX_SINGLE_REQUEST_BYTES - 2 : MAX_SINGLE_REQUEST_BYTES + 2]
        )
    async with store.read("files/large", first=LARGE - 3) as pieces:
        assert b"".join([piece async for piece in pieces]) == large[-3:]


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_content_of_two_keys_stays_until_both_are_removed(store: PinStore) -> None:
    content = os.urandom(500)
    for key in ("containers/mine", "files/of a stranger"):
        await store.put(key, content)
    await store.delete("files/of a stranger")
    assert await store.get("containers/mine") == content
    assert not await store.holds("files/of a stranger")
    await store.delete("containers/mine")
    await store.delete("containers/mine")
    with pytest.raises(Retryable) as gone:
        await store.get("containers/mine")
    assert gone.value.code == "object_missing"
    with pytest.raises(Retryable) as gone:
        async with store.read("containers/mine"):
            pass
    assert gone.value.code == "object_missing"


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_key_that_is_stored_anew_holds_the_new_content_alone(store: PinStore) -> None:
    for content in (b"first", b"second"):
        await store.put("files/output", content)
    assert await store.get("files/output") == b"second"


@of_each
async def test_crash_before_storing_leaves_nothing_after_removal(store: PinStore, server: PlainS3 | KuboNode) -> None:
    first = (await store.put("files/output", b"first")).cid
    assert isinstance(store, PlainS3Store | KuboStore)
    await store.keys.pin("files/output", str(cid_of(b"second")))  # crash here
    assert server.served(first) == b"first"
    await store.delete("files/output")
    if isinstance(server, KuboNode):
        server.collect_garbage()
    assert server.served(first) is None


@pytest.mark.parametrize("server", KINDS, indirect=True)
async def test_broken_off_upload_leaves_nothing_and_can_repeat(store: PinStore) -> None:
    content = os.urandom(LARGE)

    async def broken() -> AsyncIterator[bytes]:
        async for piece in split_into_pieces(content[: MAX_SINGLE_REQUEST_BYTES + 400_000]):
            yield piece
        raise ValueError("the caller went away")

    with pytest.raises(ValueError, match="went away"):
        await store.put_pieces("files/broken", broken())
    assert not await store.holds("files/broken")
    await store.delete("files/broken")
    assert (await store.put_pieces("files/broken", split_into_pieces(content))).cid == str(cid_of(content))


@pytest.mark.parametrize("server", ["s3"], indirect=True)
async def test_plain_bucket_is_a_gateway_without_leftovers(store: PinStore, server: PlainS3) -> None:
    small, large = os.urandom(1000), os.urandom(LARGE)
    cids = [(await store.put("a", small)).cid, (await store.put_pieces("b", split_into_pieces(large))).cid]
    assert server.held() == {f"ipfs/{cid}" for cid in cids}
    for content, cid in zip((small, large), cids, strict=True):
        assert server.served(cid) == content
    for key in "ab":
        await store.delete(key)
    assert server.held() == set()


@of_each
async def test_concurrent_keys_of_one_content_never_lose_it(store: PinStore) -> None:
    """Every key that exists at the end has its content. During the test, a server may cut off a response because
    another key writes the same content again."""
    content = os.urandom(300)

    async def come_and_go(name: str) -> None:
        for _ in range(6):
            await store.put(name, content)
            with suppress(Retryable):
                assert await store.get(name) == content
            await store.delete(name)
        await store.put(name, content)

    async with anyio.create_task_group() as tasks:
        for n in range(4):
            tasks.start_soon(come_and_go, f"containers/{n}")
    for n in range(4):
        assert await store.holds(f"containers/{n}")
        assert await store.get(f"containers/{n}") == content


@pytest.mark.parametrize("server", ["kubo"], indirect=True)
async def test_kubo_keeps_held_content_through_garbage_collection(store: PinStore, server: KuboNode) -> None:
    kept, gone = (await store.put("kept", b"kept")).cid, (await store.put("gone", b"gone")).cid
    await store.delete("gone")
    server.collect_garbage()
    async with httpx.AsyncClient(base_url=server.endpoint, trust_env=False) as gateway:
        assert (await gateway.get(f"/ipfs/{kept}")).content == b"kept"
        assert (await gateway.get(f"/ipfs/{gone}")).status_code == 404
    assert isinstance(store, KuboStore)
    assert (await store.read_repo_stat()).StorageMax > 0


@pytest.mark.parametrize("content", [b"hello", b"", os.urandom(1 << 18)])
async def test_kubo_that_answers_a_cid_of_version_0_is_understood(
    world: World, database_url: str, content: bytes
) -> None:
    async with (
        running_kubo(KuboNode(as_before=True)) as node,
        opened(configured(world, database_url, **node.settings)) as store,
    ):
        pinned = await store.put("old", content)
        assert pinned.cid.startswith("bafybei")
        assert set(node.pins) == {pinned.cid}
        assert await store.get("old") == content


async def test_kubo_that_refuses_the_user_is_a_store_that_rejects(world: World, database_url: str) -> None:
    async with running_kubo(KuboNode(authorization=("another", "word"))) as node:
        settings = {"PIN_STORE": "kubo", "PIN_STORE_ENDPOINT": node.endpoint}
        async with opened(configured(world, database_url, **settings)) as store:
            with pytest.raises(Retryable) as refused:
                await store.put("a", b"a")
    assert refused.value.code == "store_rejected"


async def test_store_that_is_away_is_unavailable(world: World, database_url: str, pin_store: PinStoreService) -> None:
    for kind in ("s3", "kubo"):
        settings = {"PIN_STORE": kind, "PIN_STORE_ENDPOINT": "http://127.0.0.1:1"}
        async with opened(configured(world, database_url, **settings)) as store:
            with pytest.raises(Retryable) as away:
                await store.put(f"a/{pin_store.bucket}", b"a")
        assert away.value.code == "store_unavailable"


@pytest.mark.parametrize("ahead", [-3600, 3600])
async def test_store_accepts_requests_of_a_clock_that_is_wrong(pin_store: PinStoreService, ahead: int) -> None:
    def clock() -> float:
        return time.time() + ahead

    async with open_http(connections=2, timeout_s=5) as http:

        def starting() -> StoreRequests:
            signer = RequestSigner(Secret(pin_store.key), Secret(pin_store.secret), "us-east-1", clock)
            return StoreRequests(http, bucket_url(pin_store.endpoint, pin_store.bucket), signer)

        await PinningStore(starting()).put("clock/one", b"content")
        async with starting().stream("get", "clock/one") as response:
            assert await response.read(100) == b"content"


@pytest.fixture
async def stage(server: PlainS3 | KuboNode, world: World, database_url: str) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url, **server.settings), []) as stage:
        yield stage


@of_each
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


@of_each
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


@of_each
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
