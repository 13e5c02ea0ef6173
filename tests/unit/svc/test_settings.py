import json
from pathlib import Path

import httpx
import pytest

from common.address_book import AddressBook, TokenDomain
from common.box import SecretKey
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.client import Client
from svc.errors import OrderRefused
from svc.settings import Settings
from svc.signers import LocalSigner
from svc.variables import PUBLIC_GATEWAY

KEY = "0x" + "01" * 32
BOOK = AddressBook(1, 7, *(bytes([n]) * 20 for n in (1, 2, 3, 4)), 6, TokenDomain("Dollar", "1"))


def test_defaults_are_local_coordinator_and_public_gateway() -> None:
    settings = Settings.resolve(environment={})
    assert (settings.gateways, settings.signer, settings.cipher_key) == ((PUBLIC_GATEWAY,), None, None)
    assert settings.settlement_margin == 3600


def test_environment_is_taken() -> None:
    settings = Settings.resolve(
        environment={
            "SVC_BASE_URL": "https://market.example/",
            "SVC_WALLET_KEY": KEY,
            "SVC_CIPHER_KEY": "02" * 32,
            "SVC_PIN_GATEWAY": "https://a.example/, https://b.example",
            "SVC_SETTLEMENT_MARGIN": "600",
        }
    )
    assert settings.base_url == "https://market.example"
    assert settings.signer == LocalSigner(Wallet(b"\x01" * 32))
    assert settings.cipher_key == SecretKey(b"\x02" * 32)
    assert not settings.cipher_key_first  # used where no wallet exists to derive a key from
    assert settings.gateways == ("https://a.example", "https://b.example")
    assert settings.settlement_margin == 600


def test_explicit_values_win() -> None:
    environment = {"SVC_BASE_URL": "https://x.example", "SVC_PIN_GATEWAY": "https://x.example", "SVC_CIPHER_KEY": KEY}
    settings = Settings.resolve(
        base_url="https://y.example",
        gateways=["https://y.example"],
        cipher_key="02" * 32,
        settlement_margin=0,
        environment={**environment, "SVC_SETTLEMENT_MARGIN": "5"},
    )
    assert (settings.base_url, settings.gateways) == ("https://y.example", ("https://y.example",))
    assert (settings.cipher_key, settings.cipher_key_first) == (SecretKey(b"\x02" * 32), True)
    assert settings.settlement_margin == 0


@pytest.mark.parametrize("url", ["http://market.example", "http://10.0.0.1:8402", "http://localhost.example"])
@pytest.mark.parametrize("name", ["SVC_BASE_URL", "SVC_RPC_URL"])
def test_plain_http_to_other_machines_needs_consent(name: str, url: str) -> None:
    with pytest.raises(Refused, match=r"must be an https:// address.*SVC_INSECURE_HTTP=1") as refused:
        Settings.resolve(environment={name: url})
    assert refused.value.param == name
    assert url in repr(Settings.resolve(environment={name: url, "SVC_INSECURE_HTTP": "1"}))
    assert url in repr(Settings.resolve(environment={name: url}, insecure_http=True))
    with pytest.raises(Refused):
        Settings.resolve(environment={name: url, "SVC_INSECURE_HTTP": "1"}, insecure_http=False)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "127.9.9.9", "[::1]:8402", "localhost", "a.localhost"])
def test_plain_http_stays_possible_on_this_machine(host: str) -> None:
    assert Settings.resolve(environment={"SVC_BASE_URL": f"http://{host}"}).base_url == f"http://{host}"


def test_ceilings_nodes_and_book_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "book.json").write_text(json.dumps(BOOK.as_json()))
    settings = Settings.resolve(
        environment={
            "SVC_MAX_AMOUNT": "5",
            "SVC_RPC_URL": "https://a.example, https://b.example,https://a.example",
            "SVC_ADDRESSES_FILE": str(tmp_path / "book.json"),
        }
    )
    assert (settings.max_amount, settings.max_batch_amount) == (5, 50)
    assert settings.rpc_urls == ("https://a.example", "https://b.example")
    assert settings.addresses == BOOK


@pytest.mark.parametrize("content", [None, "{}", "no json"])
def test_address_book_that_cannot_be_read_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "book.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Refused, match=r"the address book .*book\.json") as refused:
        Settings.resolve(environment={"SVC_ADDRESSES_FILE": str(path)})
    assert refused.value.param == "SVC_ADDRESSES_FILE"


@pytest.mark.parametrize("given", [{"gateways": ""}, {"environment": {"SVC_PIN_GATEWAY": ""}}])
def test_empty_gateway_disables_reads(given: dict[str, object]) -> None:
    assert Settings.resolve(**{"environment": {}, **given}).gateways == ()  # type: ignore[arg-type] # one of two


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SVC_WALLET_KEY", "0x1234"),
        ("SVC_WALLET_KEY", "zz" * 32),
        ("SVC_WALLET_KEY", "00" * 32),
        ("SVC_CIPHER_KEY", "01" * 31),
        ("SVC_SETTLEMENT_MARGIN", "-1"),
        ("SVC_SETTLEMENT_MARGIN", "1h"),
        ("SVC_BASE_URL", "market.example:8402"),
        ("SVC_BASE_URL", "ftp://market.example"),
        ("SVC_BASE_URL", "http://[market"),
        ("SVC_BASE_URL", "http://market.example:99999"),
        ("SVC_PIN_GATEWAY", "https://a.example,https://"),
    ],
)
def test_malformed_setting_is_named_without_keys(name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        Settings.resolve(environment={name: value})
    assert refused.value.param == name
    assert (value in str(refused.value)) == (not name.endswith("_KEY"))


def test_keys_are_never_printed() -> None:
    shown = repr(Settings.resolve(environment={"SVC_WALLET_KEY": KEY, "SVC_CIPHER_KEY": "02" * 32}))
    assert "01" * 8 not in shown
    assert "02" * 8 not in shown


def test_plain_http_pool_to_other_machines_is_refused() -> None:
    with pytest.raises(OrderRefused, match="must be an https:// address"):
        Client("https://market.example", http=httpx.AsyncClient(base_url="http://market.example"), environment={})
