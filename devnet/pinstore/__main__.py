"""Serves the pin store until SIGINT or SIGTERM.

    PIN_STORE_KEY=... PIN_STORE_SECRET=... python -m devnet.pinstore --port 8480 --data DIRECTORY

The same variables as the coordinator's say who may write, and where: PIN_STORE_KEY, PIN_STORE_SECRET,
PIN_STORE_BUCKET and PIN_STORE_REGION. Several keys, comma-separated like their secrets, may write at once.
"""

import argparse
import os
import signal
from pathlib import Path

import anyio
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.routing import Route

from devnet.pinstore.gateway import Gateway
from devnet.pinstore.objects import Objects, opened
from devnet.pinstore.s3 import S3
from devnet.pinstore.sigv4 import Credential

# The pin store as one ASGI application: the S3 interface for whoever holds the key, the gateway for all.


def build(objects: Objects, bucket: str, *credentials: Credential) -> Starlette:
    """`bucket` must not be named `ipfs`, which is the gateway's path."""
    methods = ["GET", "HEAD", "PUT", "POST", "DELETE"]
    return Starlette(
        routes=[
            Route("/ipfs/{cid}", Gateway(objects).endpoint, methods=["GET"]),
            Route("/{path:path}", S3(objects, bucket, credentials).endpoint, methods=methods),
        ]
    )


async def _until_told() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


async def _run(port: int, data: Path, bucket: str, credentials: tuple[Credential, ...]) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.include_server_header = False
    config.graceful_timeout = 3
    with opened(data) as objects:
        # hypercorn's own types call for its own protocol classes; any ASGI application is one.
        await serve(build(objects, bucket, *credentials), config, shutdown_trigger=_until_told)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m devnet.pinstore")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    environment = os.environ
    region = environment.get("PIN_STORE_REGION", "us-east-1")
    keys, secrets = (environment[name].split(",") for name in ("PIN_STORE_KEY", "PIN_STORE_SECRET"))
    credentials = tuple(Credential(key, secret, region) for key, secret in zip(keys, secrets, strict=True))
    bucket = environment.get("PIN_STORE_BUCKET", "devnet")
    anyio.run(_run, options.port, options.data, bucket, credentials, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
