"""The known peers, each with the tests or the command that runs it."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

from tests.peers.peer import ROOT, Peer, by_command, by_tests, first_number
from tests.support.programs.found import program

HERE: Final = Path(__file__).parent
IN: Final = "tests/integration/coordinatord"
BIN: Final = ROOT / ".venv-peers" / "bin"

# Tests that depend most on the database server: migration of a table with rows, locks and notifications, the relayer's
# queue, reverted blocks, leases.
_DATABASE_TESTS: Final = (
    f"{IN}/database",
    f"{IN}/relayer/test_relaying.py",
    f"{IN}/relayer/test_write_ahead.py",
    f"{IN}/indexer/test_follow.py",
    f"{IN}/indexer/test_journal.py::test_a_fork_at_the_edge_leaves_the_index_of_a_fresh_replay",
    f"{IN}/indexer/test_journal.py::test_what_lies_below_the_window_is_kept_no_longer",
    f"{IN}/book/test_leases.py",
    f"{IN}/events/test_progress.py",
    f"{IN}/failover/test_connections.py",
    f"{IN}/failover/test_commits.py",
)
# Query plans must not grow with the book. The tests use counts that servers before version 15 report too late.
_PLANS: Final = f"{IN}/book/test_long_books.py"


def peers() -> list[Peer]:
    return [
        *_of_the_document(),
        *_of_openai(),
        *(_signer(name) for name in ("viem", "ethers")),
        Peer(
            "unixfs",
            "ipfs-unixfs-importer: content ids of files of every shape, and files read back from its blocks",
            lambda: _node_version("peers/node", "ipfs-unixfs-importer"),
            lambda: by_tests("unixfs", f"{IN}/peers/unixfs.py"),
            lambda: _without_node("peers/node"),
        ),
        *_of_debian(),
        *(_database(major) for major in range(14, 19)),
    ]


def _of_the_document() -> list[Peer]:
    tests = f"{IN}/peers/described.py"

    def missing() -> str | None:
        return (
            None
            if (BIN / "schemathesis").exists()
            else "its packages are not installed (python -m tests.peers installs them)"
        )

    def of(name: str, what: str, chosen: str) -> Peer:
        version = partial(first_number, str(BIN / name), "--version")
        return Peer(name, what, version, lambda: by_tests(name, f"{tests}::{chosen}"), missing)

    return [
        of(
            "schemathesis",
            "requests that it makes of /openapi.json, to a coordinator that serves it",
            "test_schemathesis_requests_get_described_responses",
        ),
        of(
            "openapi-spec-validator",
            "the document by the schema of OpenAPI 3.1",
            "test_document_is_valid_for_openapi_spec_validator",
        ),
    ]


def _of_openai() -> list[Peer]:
    files = (f"{IN}/files/test_openai.py",)

    def rows(said: str) -> str | None:
        right = re.search(r"^right +OpenAI's client for Node", said, re.MULTILINE)
        return "every row of docs/developers/openai.md" if right else None

    command = (sys.executable, "-m", "tests.peers.strangers", "--only", "openai")
    return [
        Peer(
            "openai-python",
            "OpenAI's client for Python: models, files, batches, row by row of docs/developers/openai.md",
            lambda: installed("openai"),
            lambda: by_tests("openai-python", *files),
        ),
        Peer(
            "openai-node",
            "OpenAI's client for Node: the same, in a local market",
            lambda: _node_version("peers/strangers/openai", "openai"),
            lambda: by_command("openai-node", command, rows),
            lambda: _without_node("peers/strangers/openai"),
        ),
    ]


def _signer(name: str) -> Peer:
    return Peer(
        name,
        "as a wallet: what it signs is mined, what we sign it verifies",
        lambda: _node_version("peers/node", name),
        lambda: by_tests(name, f"{IN}/peers/signers.py", "-k", name),
        lambda: _without_node("peers/node"),
    )


def _of_debian() -> list[Peer]:
    def missing(name: str) -> Callable[[], str | None]:
        return lambda: None if program(name) else f"no {name} here; `make programs` fetches it"

    return [
        Peer(
            "promtool",
            "Prometheus' checker: /metrics of both daemons while they run, and config/prometheus",
            lambda: first_number(str(program("promtool")), "--version"),
            lambda: by_tests("promtool", "tests/integration/test_promtool.py", f"{IN}/peers/metrics.py"),
            missing("promtool"),
        ),
        Peer(
            "nginx",
            "with config/nginx in front of a coordinator: uploads, streams, waits, callers, refusals",
            lambda: first_number(str(program("nginx")), "-v"),
            lambda: by_tests("nginx", f"{IN}/server/test_reverse_proxy.py", f"{IN}/peers/proxied.py"),
            missing("nginx"),
        ),
    ]


def _database(major: int) -> Peer:
    name = f"postgresql-{major}"
    programs = HERE / "postgres" / "node_modules" / name / "native" / "bin"
    tests = (*_DATABASE_TESTS, _PLANS) if major >= 15 else _DATABASE_TESTS

    def missing() -> str | None:
        if not (programs / "postgres").exists():
            return (
                "its package is not installed (python -m tests.peers installs it, where there is one for this machine)"
            )
        return None

    return Peer(
        name,
        "migrations from nothing, and the tests that ask most of a server",
        lambda: first_number(str(programs / "postgres"), "--version"),
        lambda: by_tests(name, *tests, more={"DEVNET_POSTGRES": str(programs)}),
        missing,
    )


def _node_version(folder: str, package: str) -> str:
    found = json.loads((ROOT / "tests" / folder / "node_modules" / package / "package.json").read_text("utf-8"))
    return str(found["version"])


def _without_node(folder: str) -> str | None:
    if shutil.which("node") is None:
        return "no node in PATH"
    if not (ROOT / "tests" / folder / "node_modules").is_dir():
        return "its packages are not installed (python -m tests.peers installs them)"
    return None
