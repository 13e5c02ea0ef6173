import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from eth_account import Account

from common.box import SecretKey
from common.daemon.process import Fatal
from common.secp256k1 import Wallet
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import SlotsSettings
from svcd.base.toml import TomlTable
from svcd.config import ConfigFile, DaemonConfig, read_config

_EXAMPLE = Path(__file__).parents[4] / "config" / "svcd.toml"
_KEY = "11" * 32
_BASE = f"""\
state_directory = "/var/lib/svcd"
[coordinator]
url = "https://coordinator.example/"
[gateway]
urls = ["https://gateway.example"]
[keys]
wallet_env = "WALLET"
[[model]]
name = "a"
slots = 2
[[model.ask]]
sla_seconds = 60
rate_in = "1"
rate_out = "{2**127}"
[model.backend]
kind = "echo"
"""


def _read(text: str, tmp_path: Path, **environ: str) -> DaemonConfig:
    path = tmp_path / "svcd.toml"
    path.write_text(text)
    return read_config(path, {"WALLET": _KEY, "SHORT": "11", **environ})


def _mistake(text: str, tmp_path: Path, **environ: str) -> str:
    with pytest.raises(Fatal) as caught:
        _read(text, tmp_path, **environ)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_smallest_configuration_reads_with_its_defaults(tmp_path: Path) -> None:
    config = _read(_BASE, tmp_path)
    assert config.coordinator_url == "https://coordinator.example"
    assert config.wallet == Wallet(bytes.fromhex(_KEY))
    assert config.box is None
    assert config.slots == {"a": 2}
    (model,) = config.models
    assert model.serves == {"text"}
    assert model.asks == {60: AskRates(1, 2**127)}
    assert (config.metrics_port, config.shutdown_grace_seconds, model.margin_seconds) == (9403, 60, 30)


def test_secrets_do_not_show_in_the_configurations_own_text(tmp_path: Path) -> None:
    config = _read(_BASE.replace("[keys]", '[keys]\nbox_env = "BOX"'), tmp_path, BOX="22" * 32)
    assert config.box == SecretKey(bytes.fromhex("22" * 32))
    assert _KEY not in repr(config)
    assert "22" * 32 not in repr(config)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slots = 2", "slots = 0", "svcd.toml: model[0].slots must be an integer in 1..10000"),
        ("slots = 2", "slotz = 2", "svcd.toml: model[0].slotz is not a key of this table"),
        ("slots = 2", "slots = 2\ncolour = 1", "svcd.toml: model[0].colour is not a key of this table"),
        (
            "slots = 2",
            "slots = 2\ndiscount = { most_percent = 200 }",
            "svcd.toml: model[0].discount.most_percent must",
        ),
        ('rate_in = "1"', "rate_in = 1", "svcd.toml: model[0].ask[0].rate_in must be a decimal number in"),
        ('rate_in = "1"', 'rate_in = "01"', "svcd.toml: model[0].ask[0].rate_in must be a decimal"),
        ('kind = "echo"', 'kind = "magic"', "svcd.toml: model[0].backend.kind must be one of"),
        ('url = "https', 'url = "ftp', "svcd.toml: coordinator.url must be an http:// or https:// address"),
        (
            'coordinator.example/"',
            'c:port"',
            "svcd.toml: coordinator.url must be an http:// or https:// address",
        ),
        (
            'coordinator.example/"',
            'c:70000"',
            "svcd.toml: coordinator.url must be an http:// or https:// address",
        ),
        ('urls = ["https', 'urls = ["https", "x', "svcd.toml: gateway.urls[0] must be an http:// or https://"),
        ('wallet_env = "WALLET"', "", "svcd.toml: keys.wallet_file: wallet_file, wallet_env or"),
        ('env = "WALLET"', 'env = "NONE"', "svcd.toml: keys.wallet_env: the environment variable NONE is not set"),
        (
            'env = "WALLET"',
            'env = "WALLET"\nwallet_file = "/k"',
            "svcd.toml: keys.wallet_env stands besi",
        ),
        ('env = "WALLET"', 'env = "SHORT"', "svcd.toml: keys.wallet_env must lead to a key of 32 bytes"),
        ('env = "WALLET"', 'file = "/none"', "svcd.toml: keys.wallet_file: /none cannot be read (No such file"),
        ("[model.backend]", "[model.backends]", "svcd.toml: model[0].backends is not a key of this table"),
        ('kind = "echo"', "", "svcd.toml: model[0].backend.kind is missing"),
        ("slots = 2\n", "", "svcd.toml: model[0].slots is missing"),
        ("[[model]]", "[[model]]\n[[model.x", "svcd.toml: Expected ']]'"),
        pytest.param("slots = 2", "slots = " + "9" * 5_000, "svcd.toml: Exceeds the limit", id="an endless integer"),
        pytest.param("slots = 2", "slots = " + "[" * 60_000, "svcd.toml: its arrays or tables", id="endless arrays"),
    ],
)
def test_mistake_is_named_with_its_key_and_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert _mistake(_BASE.replace(old, new, 1), tmp_path).startswith(message)


def test_mistake_in_the_second_model_points_into_the_second_model(tmp_path: Path) -> None:
    second = _BASE[_BASE.index("[[model]]") :]
    said = _mistake(_BASE + second, tmp_path)
    assert said == "svcd.toml: model[1].name: a stands here twice"


def test_load_table_without_a_kind_is_that_of_the_slots(tmp_path: Path) -> None:
    config = _read(_BASE.replace("[model.backend]", "[model.load]\n[model.backend]"), tmp_path)
    assert config.models[0].load == SlotsSettings()
    mistake = _mistake(_BASE.replace("[model.backend]", '[model.load]\nurl = "http://h"\n[model.backend]'), tmp_path)
    assert mistake == "svcd.toml: model[0].load.url is not a key of this table"


def test_ask_that_would_withdraw_itself_is_refused(tmp_path: Path) -> None:
    free = _BASE.replace('rate_in = "1"', 'rate_in = "0"').replace(f'"{2**127}"', '"0"')
    assert "svcd.toml: model[0].ask[0]: both rates are 0" in _mistake(free, tmp_path)


def test_keys_come_from_a_file_or_a_systemd_credential(tmp_path: Path) -> None:
    (tmp_path / "wallet_key").write_text(f"0x{_KEY}\n")
    by_credential = _BASE.replace('wallet_env = "WALLET"', 'wallet_credential = "wallet_key"')
    by_file = _BASE.replace('wallet_env = "WALLET"', f'wallet_file = "{tmp_path}/wallet_key"')
    wallet = Wallet(bytes.fromhex(_KEY))
    assert _read(by_credential, tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path)).wallet == wallet
    assert _read(by_file, tmp_path).wallet == wallet
    assert "CREDENTIALS_DIRECTORY" in _mistake(by_credential, tmp_path)


def test_wallet_may_be_a_keystore_behind_its_password(tmp_path: Path) -> None:
    keystore = _BASE.replace('wallet_env = "WALLET"', 'wallet_env = "KEYSTORE"')
    document = Account.encrypt(_KEY, "open", kdf="pbkdf2", iterations=1)
    environ = {"KEYSTORE": json.dumps(document), "PASSWORD": "open", "OTHER": "closed"}
    opened = keystore.replace("[[model]]", 'wallet_password_env = "PASSWORD"\n[[model]]')
    assert _read(opened, tmp_path, **environ).wallet == Wallet(bytes.fromhex(_KEY))
    closed = _mistake(opened.replace("PASSWORD", "OTHER"), tmp_path, **environ)
    assert closed.startswith("svcd.toml: keys.wallet_env cannot be opened: ")
    assert (
        "wallet_password_file, wallet_password_env or wallet_password_credential must lead to its password"
        in _mistake(keystore, tmp_path, **environ)
    )


def test_example_takes_its_keys_from_where_the_unit_puts_them() -> None:
    unit = (_EXAMPLE.parents[1] / "systemd" / "svcd.service").read_text()
    loaded = set(re.findall(r"^LoadCredential=([\w.]+):/etc/svcd/credentials/\1$", unit, re.MULTILINE))
    named = set(re.findall(r'^(?:wallet|box)_credential = "([\w.]+)"$', _EXAMPLE.read_text(), re.MULTILINE))
    assert named == loaded == {"wallet.key", "box.key"}
    assert not re.findall(r"^(?:wallet|box)_(?:file|env)", _EXAMPLE.read_text(), re.MULTILINE)


def _example(tmp_path: Path, *, whole: bool) -> DaemonConfig:
    """The documented example; `whole`: with what it comments out, as far as it can stand beside the rest."""
    text = _EXAMPLE.read_text()
    if whole:
        text = re.sub(r"^# ([a-z_]+ = |\[)", r"\1", text, flags=re.MULTILINE)
        text = re.sub(
            r"^(wallet|box)_(password_)?(env|file) = .*$|^api_key_env = .*$|^kind = .*\|.*$", "", text, flags=re.M
        )
    book = tmp_path / "addresses.json"
    book.write_text(
        '{"chainId": 1, "deployBlock": 0, "paymentTokenDecimals": 6, "tokenDomain": {"name": "n", "version": "1"},'
        + ",".join(
            f'"{name}": "0x{"11" * 20}"' for name in ("jobRegistry", "providerRegistry", "askRegistry", "paytoken")
        )
        + "}"
    )
    (tmp_path / "credentials").mkdir(exist_ok=True)  # where commands find them outside of the unit
    for name in ("wallet.key", "box.key"):
        (tmp_path / "credentials" / name).write_text(_KEY)
    return _read(text.replace("/etc/svcd", str(tmp_path)), tmp_path)


def test_example_reads_and_what_it_comments_out_are_the_defaults(tmp_path: Path) -> None:
    bare, whole = _example(tmp_path, whole=False), _example(tmp_path, whole=True)
    assert whole.addresses is not None
    assert whole.evidence_file is not None
    assert whole.rpc_url is not None
    # Where there are more files with keys, there is more to keep from programs.
    unlike: dict[str, object] = {"addresses": None, "evidence_file": None, "rpc_url": None, "private": bare.private}
    assert all(model.ahead is not None for model in whole.models)  # no table, no running ahead
    unlike["models"] = tuple(msgspec.structs.replace(model, ahead=None) for model in whole.models)
    assert {**_values(whole), **unlike} == _values(bare)


def test_state_credentials_and_every_file_of_a_key_are_private(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("22" * 32)
    text = _BASE.replace("[keys]", f'[keys]\nbox_file = "{tmp_path}/box"\nevidence_file = "/etc/evidence.json"')
    config = _read(text, tmp_path, CREDENTIALS_DIRECTORY="/run/credentials/svcd.service")
    assert set(config.private) == {config.state_directory, Path("/run/credentials/svcd.service"), tmp_path / "box"}


def test_node_without_the_contracts_to_ask_it_about_is_refused(tmp_path: Path) -> None:
    said = _mistake(_BASE.replace("[gateway]", 'rpc_url = "https://node.example"\n[gateway]'), tmp_path)
    assert "coordinator.rpc_url needs addresses_file" in said


def _values(config: DaemonConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in type(config).__slots__ if not name.startswith("__")}


def _keys(table: type) -> set[str]:
    """The keys of a table and of those below it; the backends and probes have tables of their own."""
    keys: set[str] = set()
    for field in msgspec.structs.fields(table):
        keys.add(field.encode_name)
        for kind in (field.type, *get_args(field.type), *(a for b in get_args(field.type) for a in get_args(b))):
            if isinstance(kind, type) and issubclass(kind, TomlTable) and field.name not in ("backend", "load"):
                keys |= _keys(kind)
    return keys


def test_example_names_every_key_that_is_read() -> None:
    text = _EXAMPLE.read_text()
    written = set(re.findall(r"^(?:# )?([a-z_]+) = ", text, re.MULTILINE))
    written |= {
        part for header in re.findall(r"^(?:# )?\[+([a-z.]+)\]", text, re.MULTILINE) for part in header.split(".")
    }
    read = _keys(ConfigFile)
    assert read <= written
    assert {"rate_in", "most_percent", "box_credential", "pause_seconds", "port"} <= read
