"""Count of the source files that one order passes from HTTP to its 201.

The coordinator runs in this process as operators run it. While it answers one `POST /v1/jobs`, every function that
starts in the request's own tasks and threads is noted by its file, from the application's entry to the last byte of
the answer. Not the order's path are `coordinatord/server`, which turns bytes into requests of any kind, and the tasks
of the relayer and the indexer: the request hands over to them and is told.

`common` and `coordinatord/base` are the library beneath: one folder, of which those files count that are called from
outside of it. `everything` has the files without that distinction.

    python -m tests.house.order_path
"""

import json
import logging
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Final

import anyio
import attrs
import httpx
import structlog

from common.address_book import AddressBook
from common.domains import Domains
from coordinatord import app
from coordinatord.config import read_config
from coordinatord.http.middleware import RequestMiddleware
from devnet import accounts
from devnet.anvil import running_anvil
from devnet.app import deployed_market
from devnet.pins import running_pin_store
from devnet.ports import LOOPBACK, pick_free
from devnet.postgres import running_postgres
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.stage import environment

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("common", "coordinatord", "svcd", "svc", "devnet")
LIBRARY: Final = "library"  # the folder that the files of these count as
_SERVER: Final = "coordinatord/server/"
_GENERATED: Final = "<attrs generated"
_LIBRARY_FOLDERS: Final = ("common/", "coordinatord/base/")


@attrs.frozen
class OrderPath:
    """Files by their path from the root of the checkout, in the order in which they were entered."""

    files: tuple[str, ...]
    everything: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(LIBRARY if _in_library(file) else str(Path(file).parent) for file in self.files))


def _in_library(file: str) -> bool:
    return file.startswith(_LIBRARY_FOLDERS)


@attrs.define(eq=False)
class _Recorder:
    """A profiler that notes calls in the application's context while it is `recording`: caller's and callee's file."""

    recording: bool = False
    calls: dict[tuple[str, str], None] = attrs.field(factory=dict)
    _answering: ContextVar[bool] = attrs.field(factory=lambda: ContextVar("answering", default=False))

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self.recording:
            return
        if frame.f_code is RequestMiddleware.__call__.__code__:
            self._answering.set(True)  # inherited by the tasks and threads that the request starts
        if self._answering.get():
            caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
            self.calls.setdefault((caller, frame.f_code.co_filename))

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def path(self) -> OrderPath:
        calls = [(caller, _in_checkout(callee)) for caller, callee in self.calls]
        everything = dict.fromkeys(callee for _, callee in calls if callee and not callee.startswith(_SERVER))
        # Calls by constructors that attrs wrote are made by the class's own file.
        entered = {
            callee
            for caller, callee in calls
            if not _in_library(_in_checkout(caller)) and not caller.startswith(_GENERATED)
        }
        return OrderPath(
            tuple(file for file in everything if file in entered or not _in_library(file)), tuple(everything)
        )


def _in_checkout(name: str) -> str:
    """Relative to the checkout's root; empty for a file that is in none of its packages."""
    file = Path(name)
    if not file.is_relative_to(ROOT):
        return ""
    inside = file.relative_to(ROOT)
    return str(inside) if inside.parts[0] in PACKAGES else ""


def order_path() -> OrderPath:
    """Posts one order in a world of its own, which takes half a minute."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return anyio.run(_order_path)


async def _order_path() -> OrderPath:
    recorder = _Recorder()
    with recorder.installed():
        async with _world() as (world, url), _coordinator(world, url) as http:
            book = AddressBook.parse(json.dumps(world.market.address_book).encode())
            wallet = world.cast.with_role("client")[0]
            client = Party(wallet_of(wallet), Domains.of(book), book.job_registry, http, wallet.box_key)
            body = await client.paid(client.container(bytes(100_000)))  # long enough to be hashed in a thread
            recorder.recording = True
            answer = await http.post("/v1/jobs", json=body)
            recorder.recording = False
            if answer.status_code != 201:
                raise AssertionError(f"the order was not posted: {answer.status_code} {answer.text}")
    return recorder.path()


@asynccontextmanager
async def _world() -> AsyncIterator[tuple[World, str]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for part in ("anvil", "postgres", "pins"):
            (directory / part).mkdir()
        async with (
            running_anvil(pick_free(), directory / "anvil", directory) as anvil,
            running_postgres(pick_free(), directory / "postgres", directory) as postgres,
            running_pin_store(pick_free(), directory / "pins", directory) as store,
        ):
            cast = accounts.derive()
            market = await deployed_market(anvil, cast)
            await postgres.execute("create database house")
            yield World(anvil, store, postgres, cast, market), postgres.url("house")


@asynccontextmanager
async def _coordinator(world: World, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    port = pick_free()
    settings = environment(world, database_url, PORT=port, METRICS_PORT=0, SHUTDOWN_GRACE_S=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.run, read_config(settings))
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", trust_env=False, timeout=60) as http:
            with anyio.fail_after(60):
                while not await _is_ready(http):  # noqa: ASYNC110 - there is no event to wait for
                    await anyio.sleep(0.05)
            yield http
        tasks.cancel_scope.cancel()


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


def main() -> None:
    path = order_path()
    for file in path.everything:
        print(file if file in path.files else f"  ({file})")
    print(f"{len(path.files)} files in {len(path.folders)} folders: {', '.join(path.folders)}")
    print(f"{len(path.everything)} with those that only the library itself calls")


if __name__ == "__main__":
    main()
