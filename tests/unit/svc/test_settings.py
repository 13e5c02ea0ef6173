import pytest

from common.box import SecretKey
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.settings import PUBLIC_GATEWAY, Settings

KEY = "0x" + "01" * 32


def test_nothing_said_means_the_local_coordinator_a_public_gateway_and_no_keys() -> None:
    settings = Settings.resolve(environment={})
    assert (settings.gateways, settings.wallet, settings.cipher_key) == ((PUBLIC_GATEWAY,), None, None)
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
    assert settings.wallet == Wallet(b"\x01" * 32)
    assert settings.cipher_key == SecretKey(b"\x02" * 32)
    assert not settings.cipher_key_first  # it stands in where there is no wallet to derive one from
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
def test_malformed_setting_is_refused_without_being_shown(name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        Settings.resolve(environment={name: value})
    assert value not in str(refused.value)


def test_keys_are_never_printed() -> None:
    shown = repr(Settings.resolve(environment={"SVC_WALLET_KEY": KEY, "SVC_CIPHER_KEY": "02" * 32}))
    assert "01" * 8 not in shown
    assert "02" * 8 not in shown
