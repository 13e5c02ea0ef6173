"""The proxy's configuration is consistent, and matches the limits of the server behind it."""

import re
from collections.abc import Iterator
from pathlib import Path

from common.settings.reader import settings_of
from coordinatord.run.config import Config

CONF = Path(__file__).parents[3] / "config" / "nginx" / "coordinatord.conf"
TOKEN = re.compile(r"#[^\n]*|\"[^\"]*\"|[{};]|[^\s{};\"#]+")
Block = dict[str, list[object]]


def parse(tokens: Iterator[str], *, inner: bool) -> Block:
    """Return the directives by name, each with its arguments as text or its block."""
    block: Block = {}
    words: list[str] = []
    for token in tokens:
        if token.startswith("#"):
            continue
        if token == ";":
            assert words, "a semicolon that ends nothing"
            block.setdefault(words[0], []).append(" ".join(words[1:]))
            words = []
        elif token == "{":
            assert words, "a block without a name"
            block.setdefault(" ".join(words), []).append(parse(tokens, inner=True))
            words = []
        elif token == "}":
            assert inner, "a brace that closes nothing"
            assert not words, f"{words} is not ended by a semicolon"
            return block
        else:
            words.append(token)
    assert not inner, "a block is not closed"
    assert not words, f"{words} is not ended by a semicolon"
    return block


def served() -> Block:
    """Return the server block that passes requests to the coordinator."""
    servers = parse(iter(TOKEN.findall(CONF.read_text(encoding="utf-8"))), inner=False)["server"]
    (found,) = [server for server in servers if isinstance(server, dict) and "location /" in server]
    return found


def size(text: object) -> int:
    number, unit = re.fullmatch(r"(\d+)([km])", str(text)).groups()  # type: ignore[union-attr] # a mismatch fails the test
    return int(number) << {"k": 10, "m": 20}[unit]


def seconds(text: object) -> int:
    return int(str(text).removesuffix("s"))


def default(variable: str) -> int:
    (value,) = [each.default for each in settings_of(Config) if each.name.upper() == variable]
    assert isinstance(value, int)
    return value


def test_largest_body_of_json_and_of_a_file_pass_the_proxy() -> None:
    server = served()
    (files,) = server["location = /v1/files"]
    assert isinstance(files, dict)
    assert size(server["client_max_body_size"][0]) > 20 << 20
    assert size(files["client_max_body_size"][0]) > default("MAX_BLOB_BYTES")
    assert files["proxy_request_buffering"] == ["off"]


def test_proxy_waits_longer_than_a_relay_may_take() -> None:
    assert seconds(served()["proxy_read_timeout"][0]) > 60 + default("RELAY_QUEUE_TIMEOUT_MS") / 1000


def test_upstream_is_the_default_port() -> None:
    (upstream,) = parse(iter(TOKEN.findall(CONF.read_text(encoding="utf-8"))), inner=False)["upstream coordinatord"]
    assert isinstance(upstream, dict)
    assert upstream["server"] == [f"127.0.0.1:{default('PORT')}"]


def test_no_upgrade_and_no_rewritten_path_is_passed_on() -> None:
    server = served()
    assert {'Upgrade ""', 'Connection ""'} <= set(server["proxy_set_header"])
    assert server["merge_slashes"] == ["off"]
    for location in (server["location /"][0], server["location = /v1/files"][0]):
        assert isinstance(location, dict)
        # with a path, nginx would decode and encode the URL again
        assert location["proxy_pass"] == ["http://coordinatord"]
