"""Settings from variables, credentials and TOML files."""

from pathlib import Path

import attrs
import pytest

from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.kinds import boolean, choice, integer, list_of, number, parsed_string, path, table_of, text, url
from common.settings.listing import describe_settings
from common.settings.reader import Credentials, Environment, read_from_sources, setting, unknown_variables
from common.settings.toml import read_settings_file, table, tables, variants

ENVIRONMENT = {"MODEL": "chat", "API_KEY": "hunter2"}


@attrs.frozen(slots=True, kw_only=True)
class Settings:
    model: str = setting(text, "name of the model")
    api_key: str = setting(parsed_string("a key in lower case", str.lower), "key of the server", secret=True)
    port: int = setting(integer(1, 65535), "HTTP port", 8402)
    share: float = setting(number(0, 1), "share of the load", 0.5)
    private: bool = setting(boolean, "refuse strangers", False)
    level: str = setting(choice("info", "debug"), "log level", "info")
    nodes: tuple[str, ...] = setting(list_of(url), "nodes", (), name="node_urls")
    gateway: str | None = setting(url, "gateway", None)

    def __attrs_post_init__(self) -> None:
        if self.gateway in self.nodes:
            raise Refused("must not be one of the gateways", "nodes")


def settings(**variables: str) -> Settings:
    return read_from_sources(Settings, Environment(ENVIRONMENT | variables))


def test_variables_are_read_as_their_kinds() -> None:
    found = settings(
        PORT="1", SHARE="0.25", PRIVATE="1", LEVEL="debug", NODE_URLS="http://a, https://b:1/x/", GATEWAY="http://c/"
    )
    assert (found.port, found.share, found.private, found.level) == (1, 0.25, True, "debug")
    assert (found.nodes, found.gateway) == (("http://a", "https://b:1/x"), "http://c")


def test_defaults_apply_to_unset_and_empty_variables() -> None:
    assert settings(PORT="", SHARE="", GATEWAY="") == settings() == Settings(model="chat", api_key="hunter2")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PORT", "0", "PORT must be an integer in 1..65535, not '0'"),
        ("PORT", "08402", "PORT must be an integer in 1..65535, not '08402'"),
        ("PORT", "٨", "PORT must be an integer in 1..65535, not '٨'"),
        ("PORT", "9" * 5000, f"PORT must be an integer in 1..65535, not '{'9' * 59}…"),
        ("SHARE", "nan", "SHARE must be a number in 0..1, not 'nan'"),
        ("PRIVATE", "yes", "PRIVATE must be 1, 0, true or false, not 'yes'"),
        ("LEVEL", "Info", "LEVEL must be one of info, debug, not 'Info'"),
        ("GATEWAY", "http://", "GATEWAY must be an http:// or https:// address, not 'http://'"),
        ("GATEWAY", "http://a:99999", "GATEWAY must be an http:// or https:// address, not 'http://a:99999'"),
        ("GATEWAY", "http://[a", "GATEWAY must be an http:// or https:// address, not 'http://[a'"),
        ("NODE_URLS", "http://a,b", "NODE_URLS must be a list, each an http:// or https:// address, not 'http://a,b'"),
        ("MODEL", "", "MODEL is required (name of the model)"),
    ],
)
def test_invalid_value_is_reported_with_name_and_range(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingError) as wrong:
        settings(**{variable: value})
    assert wrong.value.message == message
    assert wrong.value.param == variable


def test_invalid_secret_is_not_shown() -> None:
    @attrs.frozen
    class Pin:
        pin: int = setting(integer(0, 9999), "", secret=True)

    with pytest.raises(SettingError, match=r"^PIN must be an integer in 0\.\.9999$"):
        read_from_sources(Pin, Environment({"PIN": "123456"}))
    assert "hunter2" not in repr(settings())


def test_rule_between_settings_names_the_variable() -> None:
    with pytest.raises(SettingError, match=r"^APP_NODE_URLS must not be one of the gateways$"):
        read_from_sources(
            Settings,
            Environment(
                {"APP_MODEL": "m", "APP_API_KEY": "k", "APP_NODE_URLS": "http://a", "APP_GATEWAY": "http://a"},
                prefix="APP_",
            ),
        )


def test_credential_is_read_for_secrets_only(tmp_path: Path) -> None:
    (tmp_path / "api_key").write_text("From-File\n")
    (tmp_path / "port").write_text("1")
    credentials = Credentials.of({"CREDENTIALS_DIRECTORY": str(tmp_path)})
    found = read_from_sources(Settings, Environment({"MODEL": "chat"}), credentials)
    assert (found.api_key, found.port) == ("from-file", 8402)
    assert read_from_sources(Settings, Environment(ENVIRONMENT), credentials).api_key == "hunter2"


def test_unreadable_credential_is_reported_by_path(tmp_path: Path) -> None:
    (tmp_path / "api_key").write_bytes(b"\x96")
    with pytest.raises(SettingError) as wrong:
        read_from_sources(Settings, Environment({"MODEL": "chat"}), Credentials(tmp_path))
    assert wrong.value.message == f"{tmp_path}: api_key must be UTF-8 text"


def test_variable_like_a_setting_is_found_with_the_right_name() -> None:
    environ = {"RELAY_DEPHT": "1", "RELAY_X": "1", "SPORT": "1", "HOME": "/", "RELAY_EMPTY": "", "RELAY_CA": "1"}
    found = unknown_variables(environ, ["RELAY_DEPTH", "PORT", "RELAY_KEY"], foreign=["RELAY_CA"])
    assert found == {"RELAY_DEPHT": "RELAY_DEPTH", "RELAY_X": None, "SPORT": "PORT"}


def test_rows_show_value_and_source_but_no_secret(tmp_path: Path) -> None:
    (tmp_path / "api_key").write_text("hunter2")
    found = {row.name: row for row in describe_settings(Settings, Environment({"PORT": "0"}), Credentials(tmp_path))}
    port, key, model, level = (found[name] for name in ("PORT", "API_KEY", "MODEL", "LEVEL"))
    assert (port.default, port.range, port.meaning, port.value) == ("8402", "1..65535", "HTTP port", "0")
    assert (port.source, port.problem) == ("environment", "must be an integer in 1..65535, not '0'")
    assert (key.value, key.source, key.problem) == ("<SECRET>", "credential", None)
    assert (model.value, model.source, model.problem) == (None, None, "is required")
    assert (level.value, level.source, level.default) == ("info", "default", "info")
    assert "hunter2" not in repr(found)


@attrs.frozen(slots=True, kw_only=True)
class Echo:
    delay: float = setting(number(0, 10), "", 0.0)


@attrs.frozen(slots=True, kw_only=True)
class Exec:
    command: tuple[str, ...] = setting(list_of(text, at_least=1))


@attrs.frozen(slots=True, kw_only=True)
class Metrics:
    port: int = setting(integer(0, 65535), "port of /metrics", 9403)
    public: bool = setting(boolean, "", False)

    def __attrs_post_init__(self) -> None:
        if self.public and not self.port:
            raise Refused("needs a port", "public")


@attrs.frozen(slots=True, kw_only=True)
class Model:
    name: str = setting(text)
    slots: int = setting(integer(1, 100), "jobs at a time", 1)
    backend: Echo | Exec = setting(variants("kind", {"echo": Echo, "exec": Exec}, default="echo"), "", Echo())
    names: dict[str, str] = setting(table_of(text), "", attrs.Factory(dict))


@attrs.frozen(slots=True, kw_only=True)
class FileSettings:
    state: Path | None = setting(path, "", None)
    metrics: Metrics = setting(table(Metrics), "", Metrics())
    model: tuple[Model, ...] = setting(tables(Model, at_least=1))


def load(folder: Path, toml: str) -> FileSettings:
    (folder / "d.toml").write_text(toml)
    return read_settings_file(folder / "d.toml", FileSettings)


def test_tables_become_their_classes(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        """
        state = "/var/lib/d"
        metrics = { port = 1 }
        [[model]]
        name = "a"
        backend = { kind = "exec", command = ["/bin/cat"] }
        names = { x = "y" }
        [[model]]
        name = "b"
        slots = 2
        backend = { delay = 1 }
        """,
    )
    assert found.state == Path("/var/lib/d")
    assert found.metrics == Metrics(port=1, public=False)
    assert found.model == (
        Model(name="a", backend=Exec(command=("/bin/cat",)), names={"x": "y"}),
        Model(name="b", slots=2, backend=Echo(delay=1.0)),
    )


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("model = [{}]", "model[0].name is required"),
        ("model = []", "model must be an array of tables (at least 1), not an array"),
        ("model = [{name = 'a', slots = 0}]", "model[0].slots must be an integer in 1..100, not 0"),
        ("model = [{name = 'a', slots = true}]", "model[0].slots must be an integer in 1..100, not true"),
        ("model = [{name = 'a', slots = '1'}]", "model[0].slots must be an integer in 1..100, not '1'"),
        ("model = [{name = 'a', slot = 1}]", "model[0].slot is not a setting (did you mean slots?)"),
        (
            "model = [{name = 'a', backend = {delay = nan}}]",
            "model[0].backend.delay must be a number in 0..10, not nan",
        ),
        (
            "model = [{name = 'a', backend = {kind = 'exce'}}]",
            "model[0].backend.kind must be one of echo, exec, not 'exce' (did you mean exec?)",
        ),
        ("model = [{name = 'a', backend = {kind = 'exec', command = ['']}}]", "model[0].backend.command[0] must be"),
        ("model = [{name = 'a', names = {x = 1}}]", "model[0].names.x must be a string that is not empty, not 1"),
        ("model = [1]", "model[0] must be a table, not 1"),
        ("metrics = {port = 0, public = true}", "metrics.public needs a port"),
        ("state = 'relative'", "state must be an absolute path, not 'relative'"),
        ("state = no", "is not valid TOML: Invalid value (at line 1, column 9)"),
        ("a = " + "9" * 5000, "is not valid TOML: "),
        ("a = " + "[" * 50_000, "has arrays or tables nested too deeply"),
    ],
)
def test_mistake_is_reported_with_file_key_value_and_range(tmp_path: Path, toml: str, problem: str) -> None:
    with pytest.raises(SettingError) as wrong:
        load(tmp_path, toml)
    assert wrong.value.message.startswith(f"{tmp_path / 'd.toml'}: {problem}")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as wrong:
        read_settings_file(tmp_path / "none.toml", FileSettings)
    assert wrong.value.message == f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"


def test_too_long_file_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at most 1,048,576 bytes"):
        load(tmp_path, '[[model]]\nname = "m"\n' + "#" * (1 << 20))
