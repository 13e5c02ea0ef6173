"""`coordinatord settings`, and the help that points to it."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from coordinatord.run import commands
from coordinatord.run.cli import coordinatord
from coordinatord.run.config import variable_names
from tests.unit.coordinatord.environment import ENVIRONMENT


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in variable_names():
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_settings_are_printed_with_value_and_source(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("PORT", "8500")
    assert commands.print_settings(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == variable_names()
    (place,) = [n for n, line in enumerate(lines) if line.startswith("PORT ")]
    assert lines[place].split(maxsplit=1)[1] == "8500 (environment)"
    assert lines[place + 1] == "    HTTP port; binds 0.0.0.0 unless BIND_HOST is set; 1..65535; default 8402"


@pytest.mark.parametrize("as_json", [False, True])
def test_settings_show_no_secret(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    secrets = {"DATABASE_URL": "postgresql://hidden", "RELAYER_KEY": "0x" + "5e" * 32, "RPC_URL": "http://a/hidden"}
    for name, value in secrets.items():
        environment.setenv(name, value)
    assert commands.print_settings(as_json) == 0
    printed = capsys.readouterr().out
    assert printed.count("<SECRET>") >= len(secrets)
    assert [name for name, value in secrets.items() if value in printed] == []


def test_invalid_setting_is_shown_and_fails(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("PORT", "0")
    assert commands.print_settings(as_json=True) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["PORT"]["problem"] == "must be an integer in 1..65535, not '0'"
    assert {name for name, row in rows.items() if row["problem"]} == {"PORT"}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_stops_reading_is_no_error(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "coordinatord", "settings"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_there_are_at_most_64_settings() -> None:
    assert len(variable_names()) <= 64


def test_help_fits_two_screens() -> None:
    assert len(CliRunner().invoke(coordinatord, ["--help"]).output.splitlines()) <= 48
