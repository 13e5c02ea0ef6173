"""Delivery of webhooks: allowed destinations, and when a message is posted again."""

import ipaddress
import socket
from collections.abc import Sequence

import anyio
import pytest
from aiohttp.abc import ResolveResult

from common.refusal import Refused
from coordinatord.api.webhooks.addresses import check_url, is_public_address
from coordinatord.api.webhooks.delivery import MAX_RETRY_AFTER_S, RETRY_DELAYS_S, read_retry_after, retry_delay_after
from coordinatord.api.webhooks.destinations import (
    DestinationRefused,
    PublicResolver,
    open_destinations,
    open_public_socket,
)
from coordinatord.base.http_client import NoResponse

PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "172.15.0.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1")
PRIVATE = (
    "127.0.0.1", "127.255.0.9", "0.1.2.3", "10.0.0.1", str(ipaddress.IPv4Address(0)),
    "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1",
    "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8",
    "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::1", "2002:c0a8:101::1", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1%eth0", "fec0::1", "ff02::1", "ff0e::1",
    "", "localhost", "127.1", "0x7f.1", "2130706433", "0177.0.0.1",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_taken(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_address_of_no_public_host_is_refused(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/", "https://hooks.example.org:8443/", "https://hooks.example.org:80/",
        "https://user@hooks.example.org/", "https://user:word@hooks.example.org/", "https://hooks.example.org/#part",
        "https:///path", "https://", "ftp://hooks.example.org", "//hooks.example.org", "hooks.example.org",
        "https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/",
        "https://127.0.0.1./", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[64:ff9b::7f00:1]/",
        "https://[fe80::1%25eth0]/", "https://169.254.169.254/latest/meta-data/", "https://10.0.0.1/",
        "https://a..b/", "https://-/", "https://" + "a" * 64 + ".org/", "https://ex\u0430mple.org/",
        "https://hooks.example.org/ x", "https://hooks.example.org/\r\nhost: x", "https://[::1/", "https://h:x/",
        "https://hooks.example.org/" + "a" * 2048, "https://hooks.example.org\\@127.0.0.1/",
    ],
)  # fmt: skip
def test_url_that_is_no_public_https_address_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refused:
        check_url(url, allow_private=False)
    assert refused.value.param == "url"


def test_public_urls_are_accepted() -> None:
    for url in (
        "https://hooks.example.org/a?b=c",
        "https://hooks.example.org:443/",
        "https://1.1.1.1/",
        "https://xn--e1a.org",
    ):
        assert check_url(url, allow_private=False) == url
    for url in ("http://127.0.0.1:8080/a", "https://[::1]:8443/"):
        assert check_url(url, allow_private=True) == url


class NameServer(PublicResolver):
    """A name server that gives one answer after another, as in DNS rebinding."""

    def __init__(self, *answers: Sequence[str]) -> None:
        super().__init__(4)
        self.answers = list(answers)
        self.asked = 0

    def look_up_name(self, host: str, port: int, family: int) -> list[ResolveResult]:
        self.asked += 1
        hosts = self.answers.pop(0)
        return [ResolveResult(hostname=host, host=each, port=port, family=2, proto=0, flags=0) for each in hosts]


async def test_name_of_which_any_address_is_private_is_refused() -> None:
    for hosts in (["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1"], []):
        with pytest.raises(OSError, match=r"public|no address"):
            await NameServer(hosts).resolve("hooks.example.org", 443)


async def test_connection_uses_the_checked_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameServer(["93.184.215.14"], ["127.0.0.1"], ["127.0.0.1"])
    opened: list[object] = []

    def refusing(family: int, *_: object) -> socket.socket:
        opened.append(family)
        raise OSError("no network in this test")

    async with open_destinations(connections=4, allow_private=False, resolver=names) as http:
        monkeypatch.setattr("coordinatord.api.webhooks.destinations.socket.socket", refusing)
        with pytest.raises(NoResponse):
            async with http("POST", "https://hooks.example.org/", {}, (b"{}",)):
                pass
    assert names.asked == 1
    assert len(opened) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_numeric_address_is_refused_at_the_socket(host: str) -> None:
    with anyio.fail_after(10):
        async with open_destinations(connections=4, allow_private=False) as http:
            with pytest.raises(NoResponse):
                async with http("POST", f"https://{host}/", {}, (b"{}",)):
                    pass


def test_socket_is_made_for_public_addresses_alone() -> None:
    open_public_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("1.1.1.1", 443))).close()
    for family, to in (
        (socket.AF_INET, ("127.0.0.1", 443)),
        (socket.AF_INET6, ("::1", 443, 0, 0)),
        (socket.AF_INET6, ("2606:4700::1", 443, 0, 2)),
        (socket.AF_UNIX, ("1.1.1.1", 443)),
    ):
        with pytest.raises(DestinationRefused):
            open_public_socket((family, socket.SOCK_STREAM, 6, "", to))


NOW = 1_800_000_000.0


def test_schedule_goes_over_a_day_with_a_jitter_and_ends() -> None:
    assert sum(RETRY_DELAYS_S) > 86_400
    for attempts, delay in enumerate(RETRY_DELAYS_S, start=1):
        told = [retry_delay_after(attempts, None) for _ in range(50)]
        assert all(each is not None and delay <= each <= 1.2 * delay for each in told)
        assert len(set(told)) > 1
    assert retry_delay_after(len(RETRY_DELAYS_S) + 1, None) is None
    assert retry_delay_after(len(RETRY_DELAYS_S) + 1, 60.0) is None


def test_receiver_that_asks_for_more_time_gets_it() -> None:
    assert retry_delay_after(1, 600.0) == 600.0
    told = retry_delay_after(3, 1.0)
    assert told is not None
    assert told >= RETRY_DELAYS_S[2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        ("0", 0.0),
        ("999999999", MAX_RETRY_AFTER_S),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("Fri, 15 Jan 2100 08:01:00 GMT", MAX_RETRY_AFTER_S),
        ("-5", None),
        ("1e9", None),
        ("soon", None),
        ("", None),
        ("9" * 400, None),
        ("Fri, 15 Jan 2027 08:01:00 +99999999999999", None),
        (f"Fri, 15 Jan {'9' * 30} 08:01:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_a_day_at_most(text: str | None, seconds: float | None) -> None:
    assert read_retry_after(text, NOW) == seconds
