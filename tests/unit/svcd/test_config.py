import json
import re
import tomllib
from pathlib import Path

import attrs
import pytest
from eth_account import Account

from common.box import SecretKey
from common.daemon.process import Fatal
from common.secp256k1 import Wallet
from common.settings.reader import Setting, settings_of
from svcd.backends.discount import AskRates
from svcd.backends.load_settings import PROBES, SlotsSettings
from svcd.backends.settings import BACKENDS
from svcd.config import (
    AheadTable,
    AskTable,
    ConfigFile,
    CoordinatorTable,
    DaemonConfig,
    GatewayTable,
    KeysTable,
    LimitsTable,
    MetricsTable,
    ModelConfig,
    TabsTable,
    read_config,
)

_EXAMPLE = Path(__file__).parents[3] / "config" / "svcd.toml"
_KEY = "11" * 32
_BASE = f"""\
state_directory = "/var/lib/svcd"
[coordinator]
url = "https://coordinator.example/"
[gateway]
urls = ["https://gateway.example"]
[keys]
wallet = "$WALLET"
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
    config = _read(_BASE.replace("[keys]", '[keys]\nbox = "$BOX"'), tmp_path, BOX="22" * 32)
    assert config.box == SecretKey(bytes.fromhex("22" * 32))
    assert _KEY not in repr(config)
    assert "22" * 32 not in repr(config)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slots = 2", "slots = 0", "model[0].slots must be an integer in 1..10000, not 0"),
        ("slots = 2", "slotz = 2", "model[0].slotz is not a setting (did you mean slots?)"),
        ("slots = 2", "slots = 2\ncolour = 1", "model[0].colour is not a setting"),
        ("slots = 2", "slots = 2\ndiscount_percent = 200", "model[0].discount_percent must be an integer in 0..100"),
        ("slots = 2", 'slots = 2\nserves = ["sound"]', "model[0].serves[0] must be one of text, embeddings, image"),
        (
            'rate_in = "1"',
            "rate_in = 1",
            'model[0].ask[0].rate_in must be a whole number in a string, such as "1000000", not 1',
        ),
        ('rate_in = "1"', 'rate_in = "01"', "model[0].ask[0].rate_in must be a whole number in a string"),
        ('kind = "echo"', 'kind = "magic"', "model[0].backend.kind must be one of openai, http, exec, echo"),
        ('url = "https', 'url = "ftp', "coordinator.url must be an http:// or https:// address"),
        ('coordinator.example/"', 'c:port"', "coordinator.url must be an http:// or https:// address"),
        ('coordinator.example/"', 'c:70000"', "coordinator.url must be an http:// or https:// address"),
        ('urls = ["https', 'urls = ["https", "x', "gateway.urls[0] must be an http:// or https:// address"),
        (
            'wallet = "$WALLET"',
            "",
            "keys.wallet names a credential, but the credentials directory is missing: create a folder",
        ),
        ('"$WALLET"', '"$NONE"', "keys.wallet names the environment variable NONE, which is not set"),
        ('"$WALLET"', '"$SHORT"', "keys.wallet must name a key of 32 bytes in hex"),
        ('"$WALLET"', '"/none"', "keys.wallet names /none, which cannot be read (No such file"),
        ('"$WALLET"', '"a/b"', "keys.wallet must be the path of a file, the name of a credential or $VARIABLE"),
        ("[model.backend]", "[model.backends]", "model[0].backends is not a setting (did you mean backend?)"),
        ('kind = "echo"', "", "model[0].backend.kind is required (one of openai, http, exec, echo)"),
        ("slots = 2\n", "", "model[0].slots is required"),
        ("[[model]]", "[[model]]\n[[model.x", "is not valid TOML: Expected ']]'"),
    ],
)
def test_mistake_is_reported_with_file_and_key(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert _mistake(_BASE.replace(old, new, 1), tmp_path).startswith(f"svcd.toml: {message}")


def test_key_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    said = _mistake(_BASE.replace("$WALLET", _KEY), tmp_path)
    assert said == "svcd.toml: keys.wallet must be the location of a key, not the key itself"


def test_error_in_the_second_model_points_there(tmp_path: Path) -> None:
    second = _BASE[_BASE.index("[[model]]") :]
    said = _mistake(_BASE + second, tmp_path)
    assert said == "svcd.toml: model[1].name must differ from the other models' names: 'a' is used twice"


def test_load_table_without_a_kind_is_that_of_the_slots(tmp_path: Path) -> None:
    config = _read(_BASE.replace("[model.backend]", "[model.load]\n[model.backend]"), tmp_path)
    assert config.models[0].load == SlotsSettings()
    mistake = _mistake(_BASE.replace("[model.backend]", '[model.load]\nurl = "http://h"\n[model.backend]'), tmp_path)
    assert mistake == "svcd.toml: model[0].load.url is not a setting"


def test_ask_that_would_withdraw_itself_is_refused(tmp_path: Path) -> None:
    free = _BASE.replace('rate_in = "1"', 'rate_in = "0"').replace(f'"{2**127}"', '"0"')
    assert "svcd.toml: model[0].ask[0].rate_in and rate_out are both 0" in _mistake(free, tmp_path)


def test_keys_come_from_a_file_or_a_systemd_credential(tmp_path: Path) -> None:
    (tmp_path / "wallet_key").write_text(f"0x{_KEY}\n")
    by_credential = _BASE.replace("$WALLET", "wallet_key")
    by_file = _BASE.replace("$WALLET", f"{tmp_path}/wallet_key")
    wallet = Wallet(bytes.fromhex(_KEY))
    assert _read(by_credential, tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path)).wallet == wallet
    assert _read(by_file, tmp_path).wallet == wallet


def test_wallet_may_be_a_keystore_with_its_password(tmp_path: Path) -> None:
    keystore = _BASE.replace("$WALLET", "$KEYSTORE")
    document = Account.encrypt(_KEY, "open", kdf="pbkdf2", iterations=1)
    environ = {"KEYSTORE": json.dumps(document), "PASSWORD": "open", "OTHER": "closed"}
    opened = keystore.replace("[[model]]", 'wallet_password = "$PASSWORD"\n[[model]]')
    assert _read(opened, tmp_path, **environ).wallet == Wallet(bytes.fromhex(_KEY))
    closed = _mistake(opened.replace("PASSWORD", "OTHER"), tmp_path, **environ)
    assert closed.startswith("svcd.toml: keys.wallet cannot be opened: ")
    assert "set wallet_password to the location" in _mistake(keystore, tmp_path, **environ)


def test_example_takes_its_keys_from_where_the_unit_puts_them() -> None:
    unit = (_EXAMPLE.parents[1] / "systemd" / "svcd.service").read_text()
    loaded = set(re.findall(r"^LoadCredential=([\w.]+):/etc/svcd/credentials/\1$", unit, re.MULTILINE))
    named = set(re.findall(r'^(?:# )?(?:wallet|box) = "([\w.]+)"$', _EXAMPLE.read_text(), re.MULTILINE))
    assert named == loaded == {"wallet.key", "box.key"}


def test_example_is_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()  # where commands outside of the unit find the keys
    for name in ("wallet.key", "box.key"):
        (tmp_path / "credentials" / name).write_text(_KEY)
    config = _read(_EXAMPLE.read_text(), tmp_path)
    assert config.box is not None
    assert config.slots == {"example/chat-large": 8}


_TABLES: dict[str, type] = {
    "": ConfigFile,
    "coordinator": CoordinatorTable,
    "gateway": GatewayTable,
    "keys": KeysTable,
    "metrics": MetricsTable,
    "limits": LimitsTable,
    "tabs": TabsTable,
    "model": ModelConfig,
    "model.ask": AskTable,
    "model.ahead": AheadTable,
    **{f"model.backend {kind}": cls for kind, cls in BACKENDS.items()},
    **{f"model.load {kind}": cls for kind, cls in PROBES.items()},
}


def _documented() -> dict[str, dict[str, tuple[str, bool]]]:
    """Return the example's keys by table: each key's value, and whether the key is commented out."""
    found: dict[str, dict[str, tuple[str, bool]]] = {"": {}}
    name = ""
    for line in _EXAMPLE.read_text().splitlines():
        if header := re.fullmatch(r"(?:# )?\[+([a-z.]+)\]+", line):
            name = header[1]
        elif kind := re.fullmatch(r'(?:# )?kind = "([a-z]+)"', line):
            name = f"{name} {kind[1]}"
        elif entry := re.fullmatch(r"(# )?([a-z_]+) = (.+)", line):
            found[name][entry[2]] = (entry[3], entry[1] is not None)
        found.setdefault(name, {})
    return {name: keys for name, keys in found.items() if name not in ("model.backend", "model.load")}


def test_example_documents_every_key_with_its_default() -> None:
    documented = _documented()
    assert documented.keys() == _TABLES.keys()
    for table, cls in _TABLES.items():
        nested = {name.rpartition(".")[2].partition(" ")[0] for name in _TABLES if name.rpartition(".")[0] == table}
        settings = {each.name: each for each in settings_of(cls) if each.name not in nested}
        assert documented[table].keys() == settings.keys(), table
        for key, (text, is_comment) in documented[table].items():
            value = settings[key].kind.from_toml(tomllib.loads(f"x = {text}")["x"])
            default = _default(settings[key])
            if is_comment and not settings[key].required and default is not None:
                assert value == default, f"{table}.{key}"


def test_there_are_at_most_seventy_five_keys() -> None:
    kinds = 2  # backends and load probes
    assert sum(map(len, _documented().values())) + kinds <= 75


def _default(setting: Setting) -> object:
    return setting.default.factory() if isinstance(setting.default, attrs.Factory) else setting.default


def test_state_credentials_and_every_file_of_a_key_are_private(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("22" * 32)
    text = _BASE.replace("[keys]", f'[keys]\nbox = "{tmp_path}/box"\nevidence_file = "/etc/evidence.json"')
    config = _read(text, tmp_path, CREDENTIALS_DIRECTORY="/run/credentials/svcd.service")
    assert set(config.private_paths) == {
        config.state_directory,
        Path("/run/credentials/svcd.service"),
        tmp_path / "box",
    }


def test_node_without_the_contracts_to_ask_it_about_is_refused(tmp_path: Path) -> None:
    said = _mistake(_BASE.replace("[gateway]", 'rpc_url = "https://node.example"\n[gateway]'), tmp_path)
    assert "coordinator.rpc_url needs addresses_file" in said
