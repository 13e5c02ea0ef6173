"""The coordinator as a separate process, like operators run it."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import attrs
import httpx

from tests.support.faults.descriptors import limited

PROGRAM: Final = "tests.support.coordinator"


@attrs.frozen
class Coordinator:
    process: "subprocess.Popen[bytes]"
    base_url: str
    metrics_url: str

    @property
    def port(self) -> int:
        return urlsplit(self.base_url).port or 0

    @property
    def metrics_port(self) -> int:
        return urlsplit(self.metrics_url).port or 0

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def exit_status(self) -> int:
        with anyio.fail_after(60):
            while self.process.poll() is None:  # noqa: ASYNC110 - a child without a loop of ours
                await anyio.sleep(0.02)
        return int(self.process.returncode)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


def start(
    environment: dict[str, str],
    *,
    errors: int | None = None,
    program: Sequence[str] = (PROGRAM,),
    descriptors: int | None = None,
) -> "subprocess.Popen[bytes]":
    command = limited((sys.executable, "-m", *program, "serve"), descriptors)
    return subprocess.Popen(command, env={"PATH": os.environ["PATH"], **environment}, stderr=errors)


@asynccontextmanager
async def running(
    environment: dict[str, str],
    port: int,
    metrics_port: int,
    *,
    errors: int | None = None,
    program: Sequence[str] = (PROGRAM,),
    descriptors: int | None = None,
) -> AsyncIterator[Coordinator]:
    """Run a coordinator. `errors` is the file descriptor of its log. `program` is the module with arguments before
    `serve`."""
    ports = {"PORT": str(port), "METRICS_PORT": str(metrics_port)}
    process = start(environment | ports, errors=errors, program=program, descriptors=descriptors)
    coordinator = Coordinator(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics")
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            await until_ready(coordinator, http)
        yield coordinator
    finally:
        process.kill()
        process.wait()


async def until_ready(coordinator: Coordinator, http: httpx.AsyncClient) -> None:
    with anyio.fail_after(60):
        while True:
            assert coordinator.process.poll() is None, "the coordinator ended"
            try:
                if (await http.get(f"{coordinator.base_url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await anyio.sleep(0.05)
