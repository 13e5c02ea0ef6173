"""Serves the pin store until SIGINT or SIGTERM.

    PIN_STORE_KEY=... PIN_STORE_SECRET=... python -m devnet.pinstore --port 8480 --data DIRECTORY

The same variables as the coordinator's say who may write, and where: PIN_STORE_KEY, PIN_STORE_SECRET,
PIN_STORE_BUCKET and PIN_STORE_REGION. Several keys, comma-separated like their secrets, may write at once.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import anyio
from aiohttp import web

from devnet.pinstore.gateway import Gateway
from devnet.pinstore.objects import Objects, opened
from devnet.pinstore.s3 import S3
from devnet.pinstore.sigv4 import Credential

# The pin store as one handler: the S3 interface for whoever holds the key, the gateway for all.

_GRACE: Final = 3.0  # seconds for requests in flight
_GATEWAY: Final = "/ipfs/"


def build(objects: Objects, bucket: str, *credentials: Credential) -> web.Application:
    """`bucket` must not be named `ipfs`, which is the gateway's path."""
    gateway, s3 = Gateway(objects), S3(objects, bucket, credentials)

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        named = path.removeprefix(_GATEWAY)
        if named != path and request.method in ("GET", "HEAD"):
            return await gateway.endpoint(request, unquote(named))
        return await s3.endpoint(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


async def _run(port: int, data: Path, bucket: str, credentials: tuple[Credential, ...]) -> None:
    with opened(data) as objects:
        application = build(objects, bucket, *credentials)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_GRACE)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break
        await runner.cleanup()


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
