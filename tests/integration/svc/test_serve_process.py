"""`svc serve` as a separate process, without free file descriptors and with a full disk."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
import pytest

from tests.integration.svc.conftest import Shop
from tests.support.faults.descriptors import idle_connections, limited
from tests.support.faults.full_disk import full_disk

pytestmark = pytest.mark.timeout(120)

_DESCRIPTORS: Final = 1024
_CONNECTIONS: Final = 1200
_RECOVERY_S: Final = 5.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the server is another process


@attrs.frozen
class Serving:
    process: "subprocess.Popen[str]"
    base_url: str
    headers: dict[str, str]

    async def models(self) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
            return await http.get(f"{self.base_url}/models", headers=self.headers)

    async def until_answered(self) -> None:
        while True:
            try:
                if (await self.models()).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await anyio.sleep(0.05)


@pytest.fixture
def serving(shop: Shop, tmp_path: Path) -> Iterator[Serving]:
    program = (sys.executable, "-m", "svc", "serve", "--port", "0", "--state", str(tmp_path / "state"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **shop.options}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            limited(program, _DESCRIPTORS), env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("base_url: "), (said, (tmp_path / "log").read_text())
        key = (tmp_path / "state" / "serve.key").read_text().strip()
        yield Serving(process, said.split()[1], {"authorization": f"Bearer {key}"})
        process.kill()


@pytest.mark.long
async def test_idle_connections_are_survived(serving: Serving) -> None:
    await serving.until_answered()
    with idle_connections(urlsplit(serving.base_url).port or 0, _CONNECTIONS):
        with anyio.fail_after(_RECOVERY_S):
            await serving.until_answered()
    with anyio.fail_after(_RECOVERY_S):
        await serving.until_answered()
    assert serving.process.poll() is None


async def test_full_disk_is_refused_with_a_retryable_answer(serving: Serving) -> None:
    """The ledger, files and standard error cannot be written. Afterwards all work again."""
    await serving.until_answered()
    chat = {"model": "demo/text-small", "messages": [{"role": "user", "content": "hello"}]}
    file = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", b"{}" * 1000)}}
    async with httpx.AsyncClient(base_url=serving.base_url, headers=serving.headers, trust_env=False) as http:
        with full_disk(serving.process.pid):
            bought = await http.post("/chat/completions", json=chat)
            uploaded = await http.post("/files", **file)
            for answer, code in ((bought, "storage_failed"), (uploaded, "storage_failed")):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
                assert answer.headers["x-should-retry"] == "true"
        assert (await http.post("/files", **file)).status_code == 200
        assert (await http.post("/chat/completions", json=chat)).json()["error"]["code"] == "no_live_provider"
    assert serving.process.poll() is None
