"""Create a backend from its settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from common.daemon.process import Fatal
from svcd.backends import confined
from svcd.backends.backend import Backend
from svcd.backends.echo import EchoBackend
from svcd.backends.exec import ExecBackend
from svcd.backends.http import HttpBackend
from svcd.backends.openai import OpenAIBackend
from svcd.backends.settings import (
    BackendSettings,
    EchoSettings,
    ExecSettings,
    HttpSettings,
    OpenAISettings,
    ServerSettings,
)

_LANDLOCK_MISSING: Final = (
    "svcd cannot keep the programs of an exec backend from reading svcd's keys, because this kernel has no Landlock"
    " (Linux 5.13 and lsm=landlock): run the programs in a model server under another user, or set confine = false to"
    " let the programs read the keys"
)


@asynccontextmanager
async def open_backend(settings: BackendSettings, private_paths: Sequence[Path] = ()) -> AsyncIterator[Backend]:
    """Yield the backend, without connecting to a server.

    Programs of an exec backend cannot access `private_paths`. Raise `Fatal` if that needs Landlock and Landlock is
    missing.
    """
    match settings:
        case OpenAISettings():
            async with _build_client(settings) as client:
                yield OpenAIBackend(settings, client)
        case HttpSettings():
            async with _build_client(settings) as client:
                yield HttpBackend(settings, client)
        case ExecSettings():
            if settings.confine and confined.landlock_version() == 0:
                raise Fatal(_LANDLOCK_MISSING)
            yield ExecBackend(settings, private_paths)
        case EchoSettings():
            yield EchoBackend(settings)


def _build_client(settings: ServerSettings) -> httpx.AsyncClient:
    # The slots already limit connections. Proxies from the environment are ignored, because they would see opened
    # payloads.
    return httpx.AsyncClient(
        headers=settings.headers,
        timeout=httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        trust_env=False,
    )
