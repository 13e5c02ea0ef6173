"""A provider names its own address: only public addresses are used, unless the client allows any."""

import pytest

from common.tab.messages import DirectEndpoint
from svc.core.clock import ServerClock
from svc.errors import ConnectionFailed
from svc.wire.direct import direct_routes


async def connect(url: str, use: str = "public", certificate: str = "") -> None:
    async with direct_routes(DirectEndpoint(url, certificate, "token"), use, ServerClock()):
        pass


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "[::1]",
        "[fe80::1]",
        "0.0.0.0",  # noqa: S104 - not bound to
        "224.0.0.1",
        "100.64.0.1",
        "[::ffff:10.1.2.3]",
        "[64:ff9b::10.1.2.3]",
        "[2002:a01:203::1]",
        "[fec0::1]",
    ],
)
async def test_private_addresses_are_not_used(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="an address that is not public"):
        await connect(f"https://{host}:8443")


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1", "https://", "https://user@192.0.2.1", "https://192.0.2.1/?a=b", "ftp://a"]
)
async def test_other_urls_are_not_used(url: str) -> None:
    with pytest.raises(ConnectionFailed, match="https"):
        await connect(url, "any")


@pytest.mark.parametrize("certificate", ["", "not a certificate", "é"])
async def test_certificate_must_be_readable(certificate: str) -> None:
    with pytest.raises(ConnectionFailed, match="PEM"):
        await connect("https://127.0.0.1:1", "any", certificate)


async def test_url_with_control_characters_is_not_used() -> None:
    with pytest.raises(ConnectionFailed, match="printable"):
        await connect("https://127.0.0.1:1/\x01", "any")
