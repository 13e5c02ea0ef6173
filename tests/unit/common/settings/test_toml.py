"""Settings from TOML files."""

from pathlib import Path

import attrs
import pytest

from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.kinds import boolean, integer, list_of, number, path, table_of, text
from common.settings.reader import setting
from common.settings.toml import read_settings_file, table, tables, variants


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
class File:
    state: Path | None = setting(path, "", None)
    metrics: Metrics = setting(table(Metrics), "", Metrics())
    model: tuple[Model, ...] = setting(tables(Model, at_least=1))


def load(folder: Path, toml: str) -> File:
    (folder / "d.toml").write_text(toml)
    return read_settings_file(folder / "d.toml", File)


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
        read_settings_file(tmp_path / "none.toml", File)
    assert wrong.value.message == f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"


def test_too_long_file_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at most 1,048,576 bytes"):
        load(tmp_path, '[[model]]\nname = "m"\n' + "#" * (1 << 20))
