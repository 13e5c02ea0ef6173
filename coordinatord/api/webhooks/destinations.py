"""Connections to the destinations of webhooks.

A name is resolved here, all its addresses are checked, and the connection uses a checked address. So a name server that
changes its answer after the check has no effect. The check is repeated when the socket is created, because numeric
addresses are not resolved.
"""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from anyio import to_thread

from coordinatord.api.webhooks.addresses import is_public_address
from coordinatord.base.http_client import HttpClient, open_http

# Timeout between two bytes from a receiver. An attempt takes at most three times as long.
SILENCE_TIMEOUT_S: Final = 5.0


class DestinationRefused(OSError):
    """Raised for a destination whose address is not public."""


class PublicResolver(AbstractResolver):
    """Looks names up in separate threads, so that an unresponsive name server does not delay other work."""

    def __init__(self, max_lookups: int) -> None:
        self._lookup_limiter = anyio.CapacityLimiter(max_lookups)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name. Raise OSError if any of its addresses is not public."""
        found = await to_thread.run_sync(
            self.look_up_name, host, port, family, abandon_on_cancel=True, limiter=self._lookup_limiter
        )
        if not found:
            raise OSError(f"{host} has no address")
        for each in found:
            if not is_public_address(each["host"]):
                raise DestinationRefused(f"{host} resolves to {each['host']}, which is not a public address")
        return found

    def look_up_name(self, host: str, port: int, family: int) -> list[ResolveResult]:
        """Return the addresses of a name. Call this in a thread, because it waits for a name server."""
        try:
            answers = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        except UnicodeError:  # a label that is too long, for example
            raise OSError(f"{host} is not a valid host name") from None
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=of,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for of, _, protocol, _, address in answers
        ]

    async def close(self) -> None:
        pass


def open_public_socket(address: "tuple[Any, ...]") -> socket.socket:
    """Return a socket for the address of a getaddrinfo entry. Raise DestinationRefused unless the address is public."""
    family, kind, protocol, _, to = address
    if family not in (socket.AF_INET, socket.AF_INET6) or not is_public_address(str(to[0])):
        raise DestinationRefused(f"{to[0]} is not a public address")
    if family == socket.AF_INET6 and len(to) > 3 and to[3]:
        raise DestinationRefused(f"{to[0]} is a link-local address")
    return socket.socket(family, kind, protocol)


@asynccontextmanager
async def open_destinations(
    *,
    connections: int,
    allow_private: bool,
    tls: ssl.SSLContext | None = None,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[HttpClient]:
    """Open a client that connects only to public addresses, or with `allow_private` to any address. The client does not
    follow redirects.

    Requests use a proxy only with `allow_private`, because a proxy could connect to private addresses."""
    settings: dict[str, Any] = {}
    if not allow_private:
        settings = {
            "resolver": resolver or PublicResolver(max(connections // 4, 4)),
            "socket_factory": open_public_socket,
        }
    async with open_http(
        connections=connections, timeout_s=SILENCE_TIMEOUT_S, tls=tls, proxies=allow_private, connector_options=settings
    ) as http:
        yield http
