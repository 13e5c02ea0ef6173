import inspect
import os
import re
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import click
import pytest

from common.scalars import hex_of
from svc.cli.commands import batches
from svc.cli.connection import _CONNECTION_OPTIONS
from svc.cli.exit_codes import EXIT_CODE_HELP, ExitCode
from svc.cli.main import _COMMAND_SECTIONS, main, svc
from svc.key_files import read_wallet


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SVC_WALLET_KEY", "SVC_WALLET_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_keygen_writes_a_key_whose_address_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wallet.key"
    assert main(["keygen", "--out", str(path)]) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out == hex_of(read_wallet(path).address) + "\n"
    assert path.read_text().strip() not in said.err
    assert main(["address", str(path)]) == ExitCode.DONE
    assert capsys.readouterr().out == said.out


@pytest.mark.parametrize("where", ["taken", "no/folder/key"])
def test_keygen_refuses_a_file_that_it_cannot_make(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("precious")
    assert main(["keygen", "--out", str(tmp_path / where)]) == ExitCode.USAGE
    assert where in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "precious"


def test_address_of_no_key_file_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("no key")
    assert main(["address", str(tmp_path / "note")]) == ExitCode.NO_KEY


def test_programs_are_written_to_in_utf_8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    with TextIOWrapper(BytesIO(), encoding="latin-1") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["--version"]) == ExitCode.DONE
        assert out.encoding == "utf-8"


def test_closed_output_ends_with_a_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["--version"]) == ExitCode.UNREADABLE
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["bogus"], ["address"], ["keygen", "--bogus"], ["completion", "tcsh"], []])
def test_wrong_command_line_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert "Usage: svc" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    listed = capsys.readouterr().out
    for name, command in commands().items():
        assert re.search(rf"^  {name}  +\S", listed, re.MULTILINE), name
        assert main([name, "--help"]) == ExitCode.DONE
        assert f"Usage: svc {name}" in capsys.readouterr().out
        assert [parameter.name for parameter in command.params if not parameter.help] == []


def test_no_command_takes_a_secret_as_an_argument() -> None:
    every = [*commands().values(), *batches.batch.commands.values()]
    named = {str(parameter.name) for command in every for parameter in command.params}
    # These are key files, and the public keys of escrows.
    assert {name for name in named if "key" in name or "secret" in name} == {"key_file", "key", "escrow_keys"}


def test_command_has_a_parameter_for_each_option() -> None:
    """Decorators consume the options of connections and orders."""
    groups = [command for command in commands().values() if isinstance(command, click.Group)]
    leaves = [command for command in commands().values() if not isinstance(command, click.Group)]
    for command in [*leaves, *(each for group in groups for each in group.commands.values())]:
        accepted = set(inspect.signature(inspect.unwrap(command.callback)).parameters)
        if accepted.isdisjoint({"order", "offer"}):
            options = {str(parameter.name) for parameter in command.params}
            assert options - {*_CONNECTION_OPTIONS, "as_json", "quiet"} <= accepted, command.name


def test_short_help_equals_the_commands_own() -> None:
    told = {name: said for section in _COMMAND_SECTIONS.values() for name, _, said in section}
    assert told == {name: command.get_short_help_str(limit=90) for name, command in commands().items()}


def test_help_and_version_import_no_command_and_no_network() -> None:
    code = (
        "import sys; from svc.cli.main import main; main(['--help']); main(['--version']); "
        ""
        "sys.exit(sorted({'httpx', 'anyio', 'rich', 'svc.client', 'common.secp256k1'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_missing_wallet_is_reported_before_the_import(tmp_path: Path) -> None:
    heavy = "{'httpx', 'rich', 'msgspec', 'svc.client', 'pycparser'}"
    code = (
        f"import sys; from svc.cli.main import main; main(['jobs']); sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.startswith("svc: no wallet: ")) == (0, True)


def test_no_command_imports_transaction_or_keystore_readers() -> None:
    code = (
        "import sys; from importlib import import_module; from svc.cli.main import _COMMAND_LOCATIONS\n"
        "modules = {place.partition(':')[0] for place in _COMMAND_LOCATIONS.values() if ':' in place} - {'serve'}\n"
        "for module in modules: import_module('svc.cli.commands.' + module)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in loaded
    assert {"eth_account", "eth_abi", "eth_utils", "web3", "ckzg", "pydantic", "pycparser"} & set(loaded) == set()


def commands() -> dict[str, click.Command]:
    context = click.Context(svc)
    found = {name: svc.get_command(context, name) for name in svc.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    listed = capsys.readouterr().out
    assert EXIT_CODE_HELP.keys() == set(ExitCode)
    for code in ExitCode:
        assert re.search(rf"^  {code.value} +\S", listed, re.MULTILINE)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_asks_svc_for_its_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == ExitCode.DONE
    script = capsys.readouterr().out
    assert f"_SVC_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("shell", "words", "current", "offered"),
    [
        ("zsh", "svc key", "1", "plain\nkeygen\nCreate a wallet key file."),
        ("zsh", "svc batch can", "2", "plain\ncancel\nStop posting lines of a batch."),
        ("fish", "svc key", "key", "plain,keygen\tCreate a wallet key file."),
        ("fish", "svc jobs --state Can", "Can", "plain,Cancelled"),
    ],
)
def test_completion_uses_the_format_of_the_shell_script(shell: str, words: str, current: str, offered: str) -> None:
    asked = {"_SVC_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": current}
    svc = str(Path(sys.executable).with_name("svc"))
    ran = subprocess.run([svc], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == offered


def test_completion_in_bash_offers_the_commands() -> None:
    ask = 'COMP_WORDS=(svc key); COMP_CWORD=1; _svc_completion svc; echo "${COMPREPLY[*]}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-c", f'eval "$(svc completion bash)"; {ask}']
    ran = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "keygen"
