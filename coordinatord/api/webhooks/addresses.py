"""Addresses and URLs that webhooks may be posted to.

Without these checks, an owner could have the coordinator post to a host that only this machine can reach: a local
service, a private network, or a cloud's metadata service.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from common.refusal import Refused

MAX_URL_CHARACTERS: Final = 2048
_HOST_PATTERN: Final = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?"
)
_V4_BLOCKED: Final = tuple(
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
# Global unicast addresses. IPv4-mapped, NAT64, local and multicast addresses are outside of this range. _V6_BLOCKED has
# the parts of the range that are not global or that embed an IPv4 address.
_V6_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")
_V6_BLOCKED: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


def is_public_address(address: str) -> bool:
    """Return True if the text is an IP address in a range that is reachable from the internet."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _V4_BLOCKED)
    return parsed.scope_id is None and parsed in _V6_PUBLIC and not any(parsed in network for network in _V6_BLOCKED)


def check_url(url: str, *, allow_private: bool) -> str:
    """Return the URL, or raise Refused. `allow_private` allows plain HTTP, any port, and private addresses."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise Refused("url must be a valid https:// URL", "url") from None
    error = None
    if not url.isascii() or any(
        character <= " " or character == "\x7f" or character in '\\"<>^`{|}' for character in url
    ):
        error = "url must be visible ASCII; percent-encode all other characters, and write the host in punycode"
    elif len(url) > MAX_URL_CHARACTERS:
        error = f"url must be at most {MAX_URL_CHARACTERS} characters"
    elif parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        error = "url must begin with https://"
    elif not (_HOST_PATTERN.fullmatch(host) or _is_v6_address(host)):
        error = "url must have a valid host name or IP address"
    elif "@" in parts.netloc or "#" in url:
        error = "url must have no user, password or fragment"
    elif not allow_private and port not in (None, 443):
        error = "url must use port 443"
    elif not allow_private and _is_numeric_host(host) and not is_public_address(host):
        error = "url must not have a private IP address as its host"
    if error is not None:
        raise Refused(error, "url")
    return url


def _is_v6_address(host: str) -> bool:
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False


def _is_numeric_host(host: str) -> bool:
    """Return True if a resolver would read the host as an address. The last label of a name never starts with a
    digit."""
    return ":" in host or host.rstrip(".").rpartition(".")[2][:1].isdigit()
