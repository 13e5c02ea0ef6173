"""Record requests and responses of API tests: `-p tests.simulation.recorder.pytest_plugin`, with RECORD_TESTS=FOLDER.

For each test with `shows` marks, write the exchanges that fit a mark to a separate file. Other exchanges are left out,
because the number of polls of a test depends on the machine.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

import httpx
import pytest

from devnet.world import World
from tests.integration.coordinatord.scene.shows import is_shown
from tests.integration.coordinatord.scene.stage import Seen, _code
from tests.simulation.recorder.entries import Exchanged, entries_of, write
from tests.simulation.recorder.normal import Normaliser

_FOLDER: Final = Path(os.environ["RECORD_TESTS"])
_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@pytest.fixture(autouse=True)
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    marks = [mark.args for mark in request.node.iter_markers("shows")]
    if not marks:
        yield
        return
    names = _names(request.getfixturevalue("world"))
    shown: list[Exchanged] = []
    real = httpx.ASGITransport.handle_async_request

    async def heard(transport: httpx.ASGITransport, asked: httpx.Request) -> httpx.Response:
        sent = await asked.aread()
        response = await real(transport, asked)
        await response.aread()
        path = asked.url.raw_path.decode()
        seen = Seen(f"{asked.method} {path.partition('?')[0]}", response.status_code, _code(response))
        if any(is_shown(seen, *mark) for mark in marks):
            headers = dict(response.headers)
            shown.append(Exchanged(asked.method, path, sent, response.status_code, headers, response.content))
        return httpx.Response(response.status_code, headers=response.headers, stream=_Whole(response.content))

    with patch.object(httpx.ASGITransport, "handle_async_request", heard):
        yield
    normal = Normaliser(names)
    entries = [entry for exchanged in shown for entry in entries_of(exchanged, normal)]
    write(_FOLDER / f"{_file_name(request.node.nodeid)}.jsonl", entries)


class _Whole(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        yield self._content


def _names(world: World) -> dict[str, str]:
    names = {}
    for role in {wallet.role for wallet in world.wallets.wallets}:
        for number, wallet in enumerate(world.wallets.with_role(role)):
            names[wallet.address.removeprefix("0x")] = f"{role}#{number}"
    return names


def _file_name(node: str) -> str:
    """Return a readable name that is unique for the test."""
    path, _, name = node.partition("::")
    short = _FILE_NAME.sub("-", name)[:100]
    return f"{Path(path).stem}/{short}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
