"""From a backend's settings to the backend, ready for jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from svcd.backends.backend import Backend
from svcd.backends.echo import EchoBackend
from svcd.backends.exec import ExecBackend
from svcd.backends.http import HttpBackend
from svcd.backends.openai import OpenAIBackend
from svcd.backends.settings import BackendSettings, EchoSettings, ExecSettings, HttpSettings, OpenAISettings, Patience


@asynccontextmanager
async def open_backend(settings: BackendSettings) -> AsyncIterator[Backend]:
    """For as long as the context lasts. It opens no connection: `is_up` tells whether there is something to reach."""
    match settings:
        case OpenAISettings():
            async with _client(settings.headers, settings.patience) as client:
                yield OpenAIBackend(settings, client)
        case HttpSettings():
            async with _client(settings.headers, settings.patience) as client:
                yield HttpBackend(settings, client)
        case ExecSettings():
            yield ExecBackend(settings)
        case EchoSettings():
            yield EchoBackend(settings)


def _client(headers: dict[str, str], patience: Patience) -> httpx.AsyncClient:
    # Slots are counted above, so that connections need no limit of their own. Proxies of the environment would carry
    # opened payloads elsewhere: none is taken without being configured.
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(patience.read_seconds, connect=patience.connect_seconds),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        trust_env=False,
    )
