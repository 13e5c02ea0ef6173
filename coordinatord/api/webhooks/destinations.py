"""Destinations of webhooks: which addresses may be posted to, and connections that go nowhere else.

An owner names a host, and so could have this machine connect to what only this machine reaches: its own services, a
private network, a cloud's metadata. So a name is resolved here, each of its addresses is judged, and the connection is
made to the very address that was judged: a name that answers otherwise a moment later changes nothing. The judgement
stands a second time where the socket is made, which addresses written as numbers pass, too.
"""

import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from anyio import to_thread

from common.refusal import Refused
from coordinatord.base.http_client import Http, open_http

LONGEST_URL: Final = 2048
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_PATIENCE: Final = 5.0  # seconds between two signs of life; an attempt takes three times as long at most
_V4_REFUSED: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host, which looks public
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# Global unicast, and of it what is none or has an IPv4 address within: that would have to be judged, and whoever
# receives webhooks has an address of its own. IPv4-mapped, NAT64, local and multicast addresses lie outside.
_V6_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")
_V6_REFUSED: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


class DestinationRefused(OSError):
    """An address that nothing is posted to."""


def is_public(address: str) -> bool:
    """True for an address that anybody on the internet can reach, as far as its form tells."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _V4_REFUSED)
    return parsed.scope_id is None and parsed in _V6_PUBLIC and not any(parsed in network for network in _V6_REFUSED)


def check_url(url: str, *, private: bool) -> str:
    """The URL that is posted to. Raises Refused. `private`: also plain HTTP, any port, and addresses of this
    network."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise Refused("url must be an https:// address", "url") from None
    wrong = None
    if not url.isascii() or any(
        character <= " " or character == "\x7f" or character in '\\"<>^`{|}' for character in url
    ):
        wrong = "url must be visible ASCII, with the rest percent-encoded and the host in punycode"
    elif len(url) > LONGEST_URL:
        wrong = f"url must be at most {LONGEST_URL} characters"
    elif parts.scheme != "https" and not (private and parts.scheme == "http"):
        wrong = "url must begin with https://"
    elif not (_HOST.fullmatch(host) or _is_v6(host)):
        wrong = "url must name a host"
    elif "@" in parts.netloc or "#" in url:
        wrong = "url must have no user, password or fragment"
    elif not private and port not in (None, 443):
        wrong = "url must be of port 443"
    elif not private and _is_numeric(host) and not is_public(host):
        wrong = "url must be of a public address"
    if wrong is not None:
        raise Refused(wrong, "url")
    return url


def _is_v6(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False


def _is_numeric(host: str) -> bool:
    """An address, in any form that a resolver might take for one: a name's last part is no number."""
    return ":" in host or host.rstrip(".").rpartition(".")[2][:1].isdigit()


class PublicResolver(AbstractResolver):
    """Names looked up in threads of its own: a name server that never answers keeps nobody else waiting."""

    def __init__(self, lookups: int) -> None:
        self._turns = anyio.CapacityLimiter(lookups)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError: also where any of the addresses is not public, for who has such a name means no good."""
        found = await to_thread.run_sync(self.look_up, host, port, family, abandon_on_cancel=True, limiter=self._turns)
        if not found:
            raise OSError(f"{host} has no address")
        for each in found:
            if not is_public(each["host"]):
                raise DestinationRefused(f"{host} leads to {each['host']}, which is not public")
        return found

    def look_up(self, host: str, port: int, family: int) -> list[ResolveResult]:
        """In a thread."""
        try:
            answers = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        except UnicodeError:  # of a label that is too long, say
            raise OSError(f"{host} is no name") from None
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


def public_socket(address: "tuple[Any, ...]") -> socket.socket:
    """Socket for a connection to the address of a getaddrinfo entry. Raises DestinationRefused unless it is public."""
    family, kind, protocol, _, to = address
    if family not in (socket.AF_INET, socket.AF_INET6) or not is_public(str(to[0])):
        raise DestinationRefused(f"{to[0]} is not public")
    if family == socket.AF_INET6 and len(to) > 3 and to[3]:
        raise DestinationRefused(f"{to[0]} is of one link")
    return socket.socket(family, kind, protocol)


@asynccontextmanager
async def open_destinations(
    *, connections: int, private: bool, tls: ssl.SSLContext | None = None, resolver: AbstractResolver | None = None
) -> AsyncIterator[Http]:
    """Requests that reach public addresses alone, or with `private` any. Redirects are not followed.

    A proxy would connect to private addresses for us, so that only `private` requests go through one."""
    settings: dict[str, Any] = {}
    if not private:
        settings = {"resolver": resolver or PublicResolver(max(connections // 4, 4)), "socket_factory": public_socket}
    async with open_http(
        connections=connections, patience=_PATIENCE, tls=tls, proxies=private, connector=settings
    ) as http:
        yield http
