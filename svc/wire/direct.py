"""Connect to the server that a provider runs for its tabs. The provider supplies the server's address and certificate.

A provider could name any address, so by default only public addresses are allowed. The host name is resolved once, all
its addresses must be public, and requests go to one of these addresses. The scheme must be https. Only the
provider's certificate is trusted, and its names must include the host. Redirects are not followed, and proxies are not
used.
"""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

import anyio
import httpx

from common.tab.messages import DirectEndpoint
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed
from svc.wire.tabs import TabRoutes, bearer_caller
from svc.wire.transport import Clock, Transport

_CONNECT_TIMEOUT_S: Final = 3.0
_ANSWER_TIMEOUT_S: Final = 20.0
_DEFAULT_PORT: Final = 443
_NAT64_NETWORK: Final = IPv6Network("64:ff9b::/96")
_LAST_32_BITS_MASK: Final = 0xFFFF_FFFF

DirectPolicy = Literal["public", "any", "off"]  # addresses to which tabs may connect directly; off: none


@asynccontextmanager
async def direct_routes(endpoint: DirectEndpoint, policy: DirectPolicy, clock: Clock) -> AsyncIterator[TabRoutes]:
    """Yield the routes of a provider's server. Raises ConnectionFailed if the address is invalid or not allowed."""
    host, port, path = _split_url(endpoint.url)
    address = await _resolve(host, port, policy)
    context = _ssl_context(endpoint.certificate)
    if not (endpoint.token.isascii() and endpoint.token.isprintable()):
        raise _unusable_error("its token has characters other than printable ASCII")
    netloc = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    transport = _PinnedAddressTransport(host, port, httpx.AsyncHTTPTransport(verify=context, trust_env=False))
    timeout = httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    base_url = f"https://{netloc}:{port}{path}"
    async with httpx.AsyncClient(transport=transport, base_url=base_url, timeout=timeout, trust_env=False) as http:
        yield TabRoutes(Transport(http, clock, RetryPolicy(max_retries=0)), bearer_caller(endpoint.token))


class _PinnedAddressTransport(httpx.AsyncBaseTransport):
    """Transport for URLs with a checked IP address. Sends the host name, and requires a certificate for that name."""

    def __init__(self, host: str, port: int, inner: httpx.AsyncHTTPTransport) -> None:
        self._host, self._inner = host, inner
        self._host_header = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["host"] = self._host_header
        request.extensions = {**request.extensions, "sni_hostname": self._host}
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _split_url(url: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        raise _unusable_error("its address is not a valid URL") from None
    if not (url.isascii() and url.isprintable()):
        raise _unusable_error("its URL has characters other than printable ASCII")
    if parts.scheme != "https" or not host or parts.username or parts.query or parts.fragment:
        raise _unusable_error("its URL must be https://HOST[:PORT][/PATH]")
    return host, port, parts.path.rstrip("/")


async def _resolve(host: str, port: int, policy: DirectPolicy) -> IPv4Address | IPv6Address:
    try:
        with anyio.fail_after(_CONNECT_TIMEOUT_S):
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    except (OSError, ValueError, TimeoutError) as error:
        raise _unusable_error(f"its host name {host} cannot be resolved: {error}") from None
    if not addresses:
        raise _unusable_error(f"its host name {host} has no address")
    if policy != "any" and not all(_is_public(each) for each in addresses):
        raise _unusable_error(f"its host {host} has an address that is not public")
    return addresses[0]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return True for a public address. If an IPv6 address translates to an IPv4 address, both must be public."""
    if isinstance(address, IPv6Address):
        translated = IPv4Address(int(address) & _LAST_32_BITS_MASK) if address in _NAT64_NETWORK else address.sixtofour
        if address.is_site_local or (translated is not None and not _is_public(translated)):
            return False
    return address.is_global and not address.is_multicast


def _ssl_context(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # accept a certificate that is not a CA's
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: the certificate is not ASCII
        raise _unusable_error(f"its certificate is not PEM: {error}") from None
    return context


def _unusable_error(reason: str) -> ConnectionFailed:
    return ConnectionFailed(f"the provider's server for tabs cannot be used: {reason}", retryable=False)
