"""The pin store as a service of the local world: a process of its own, so that a test can kill it."""

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import httpx

from devnet.child import Child, Program, running
from devnet.ports import LOOPBACK

BUCKET: Final = "devnet"
REGION: Final = "us-east-1"


@attrs.frozen
class PinStoreService:
    """How to reach the store: the coordinator's PIN_STORE_* settings, and the gateway."""

    endpoint: str
    key: str
    secret: str = attrs.field(repr=False)
    bucket: str
    region: str
    child: Child

    @property
    def gateway(self) -> str:
        return self.endpoint  # one server answers both; /ipfs/ is the gateway's path


@asynccontextmanager
async def running_pin_store(port: int, data: Path, logs: Path) -> AsyncIterator[PinStoreService]:
    key, secret = f"DEVNET{secrets.token_hex(7).upper()}", secrets.token_urlsafe(30)
    program = Program(
        "pin store",
        (sys.executable, "-m", "devnet.pinstore", "--port", str(port), "--data", str(data)),
        logs / "pinstore.log",
        environment={
            "PIN_STORE_KEY": key,
            "PIN_STORE_SECRET": secret,
            "PIN_STORE_BUCKET": BUCKET,
            "PIN_STORE_REGION": REGION,
        },
    )
    async with running(program) as child, httpx.AsyncClient(trust_env=False) as client:
        store = PinStoreService(f"http://{LOOPBACK}:{port}", key, secret, BUCKET, REGION, child)

        async def answers() -> bool:
            try:
                await client.get(f"{store.gateway}/ipfs/")
            except httpx.TransportError:
                return False
            return True

        await child.wait_until(answers)
        yield store
