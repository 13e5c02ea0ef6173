"""Every program on a real pseudo-terminal of 80 columns. Unit tests of the tables use 120 as well."""

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from devnet.ports import pick_free
from svc.cli.commands.watch import PANES
from svc.cli.exit_codes import ExitCode
from tests.e2e.conftest import Market
from tests.support.pseudo_terminal import PseudoTerminal, Shown, cells

pytestmark = pytest.mark.long

_COLUMNS = 80
_WATCHED_S = 60
# Each with a word that it prints when it is ready.
_DAEMONS = {
    "coordinatord serve": "serving",
    "svc serve --port 0": "/v1",
    "svcd run --config {svcd_beside}": "provider started",
}
_PROMPT = "Why is the sky blue?"
_TABLES = """
svc models
svc models demo/text-small
svc asks
svc asks --floors
svc providers
svc providers 1
svc escrow
svc jobs
svc verify {job}
svc status {job}
svc balance
svc quote demo/text-small hello
svc doctor
svc config show
svc market show
svc webhooks list
svc batch list
svc batch plan {lines}
svc batch status {batch}
svc watch --once
svc watch --once --pane jobs
svc watch --once --pane models
svc watch --once --pane providers
svc watch --once --pane market
svcd status --config {svcd}
svcd check --config {svcd}
svcd earnings --config {svcd}
coordinatord check
coordinatord keys
coordinatord relayers
coordinatord budgets
coordinatord market status
"""


def _start(line: str, environment: Mapping[str, str]) -> PseudoTerminal:
    program, *rest = shlex.split(line)
    if program == "coordinatord":  # coordinatord rejects another program's variables as misspelt
        environment = {name: value for name, value in environment.items() if not name.startswith("SVC")}
    return PseudoTerminal.start([str(Path(sys.executable).with_name(program)), *rest], environment, _COLUMNS)


def _run(line: str, environment: Mapping[str, str]) -> Shown:
    return _start(line, environment).end()


@pytest.fixture(scope="module")
def environment(market: Market, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables from which every program takes this market's settings."""
    home = tmp_path_factory.mktemp("home")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC")}
    found = {**clean, **market.environment, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    up = json.loads((market.state / "devnet.json").read_text())
    for daemon in ("coordinator", "provider"):
        pairs = Path(f"/proc/{up['processes'][daemon]}/environ").read_text().split("\0")
        found |= {
            name: value for name, _, value in (pair.partition("=") for pair in pairs) if name not in found and name
        }
    book = market.state / "addresses.json"
    found.pop("ADDRESSES_JSON", None)
    return {**found, "ADDRESSES_FILE": str(book), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def names(market: Market, environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Buy a job, and create a batch and a webhook. Return the words by which commands name them."""
    folder = tmp_path_factory.mktemp("bought")
    lines = folder / "lines.jsonl"
    lines.write_text(
        "".join(json.dumps({"body": {"model": "demo/text-small", "input": f"hi {n}"}}) + "\n" for n in range(5))
    )
    bought = _run(f"svc run demo/text-small {shlex.quote(_PROMPT)} --final", environment)
    assert bought.code == ExitCode.DONE, bought.text
    batch = _run(f"svc batch run {lines} --window 1h --out {folder / 'out.jsonl'}", environment)
    assert batch.code == ExitCode.DONE, batch.text
    hook = "https://hooks.example.org/" + "a-long-path/" * 4
    assert _run(f"svc webhooks add {hook} job.settled batch.completed", environment).code == ExitCode.DONE
    return {
        "job": next(line.split()[1] for line in bought.lines if line.startswith("job 0x")),
        "batch": next(line.split()[1] for line in batch.lines if line.startswith("batch batch_")),
        "lines": str(lines),
        "svcd": str(market.state / "provider" / "svcd.toml"),
    }


@pytest.mark.parametrize("line", _TABLES.split("\n")[1:-1])
def test_table_fits_a_real_terminal(environment: Mapping[str, str], names: dict[str, str], line: str) -> None:
    shown = _run(line.format_map(names), environment)
    assert shown.code == 0, shown.text
    _fits(shown)


def _fits(shown: Shown) -> None:
    assert "Traceback" not in shown.text
    # The terminal itself wraps warnings, which are prose, and paths or ids longer than a line.
    long = [line for line in shown.lines if cells(line) > _COLUMNS and not line.startswith("svc: warning")]
    assert not [line for line in long if len(line.split()) > 1]


@pytest.mark.timeout(_WATCHED_S + 60)
def test_watch_runs_for_a_minute_on_every_pane(environment: Mapping[str, str], names: dict[str, str]) -> None:
    started = {pane: _start(f"svc watch --pane {pane}", environment) for pane in PANES}
    for terminal in started.values():
        terminal.wait_for(lambda shown: "live, block" in shown)
    time.sleep(_WATCHED_S)  # wait in real time, because no event shows that the programs are still running
    for pane, terminal in started.items():
        assert terminal.process.poll() is None, (pane, terminal.shown)
        terminal.type("q")
        shown = terminal.end()
        assert shown.code == ExitCode.DONE, (pane, shown.text)
        _fits(shown)


def test_prompts_are_answered_on_a_terminal(
    environment: Mapping[str, str], names: dict[str, str], tmp_path: Path
) -> None:
    keystore = tmp_path / "keystore.json"
    asked = _start(f"svc keygen --encrypted --out {keystore}", environment)
    for times in (1, 2):
        asked.wait_for(lambda shown, times=times: shown.count(": ") >= times)  # type: ignore[misc] # bound as it is now
        asked.type("a long password\n")
    assert asked.end().code == ExitCode.DONE
    assert keystore.exists()
    dear = "svc run demo/text-small hi --rate-in 1000000000 --rate-out 1000000000 --provider 1"
    asked = _start(dear, environment)
    asked.wait_for(lambda shown: "Pay it?" in shown)
    asked.type("n\n")
    shown = asked.end()
    assert shown.code == ExitCode.REFUSED, shown.text
    assert "Traceback" not in shown.text


@pytest.mark.parametrize("line", _DAEMONS)
def test_daemon_runs_on_a_terminal_until_interrupted(
    environment: Mapping[str, str], names: dict[str, str], tmp_path: Path, line: str
) -> None:
    ports = {"PORT": str(pick_free()), "METRICS_PORT": str(pick_free())}
    state, market_state = tmp_path / "state", Path(names["svcd"]).parent
    beside = tmp_path / "svcd.toml"
    text = Path(names["svcd"]).read_text()
    text = re.sub(r"(?m)^state_directory = .*$", f'state_directory = "{state}"', text)
    text = re.sub(r"(?m)^port = \d+$", f"port = {ports['METRICS_PORT']}", text)
    beside.write_text(text)
    credentials = market_state / "credentials"
    if credentials.exists():
        (tmp_path / "credentials").symlink_to(credentials)
    terminal = _start(line.format(svcd_beside=beside), {**environment, **ports})
    terminal.wait_for(lambda shown: _DAEMONS[line] in shown)
    terminal.process.send_signal(signal.SIGINT)
    shown = terminal.end()
    assert shown.code in (0, ExitCode.INTERRUPTED), shown.text
    assert "Traceback" not in shown.text


def is_prompt(shown: str) -> bool:
    return shown.rstrip(" ").endswith((":", "?", "]"))


def test_questions_of_init_survive_a_mistake_and_ctrl_c(environment: Mapping[str, str], tmp_path: Path) -> None:
    terminal = _start(f"svcd init --config {tmp_path / 'svcd.toml'}", environment)
    terminal.wait_for(lambda shown: "1" in shown and is_prompt(shown))
    before = terminal.shown
    terminal.type("not an address\n")
    terminal.wait_for(lambda shown: len(shown) > len(before) + 20 and is_prompt(shown))
    shown = terminal.interrupt()
    assert shown.code != 0
    assert "Traceback" not in shown.text
    _fits(shown)


def test_register_of_a_registered_wallet_fits(environment: Mapping[str, str], names: dict[str, str]) -> None:
    shown = _run(f"svcd register --dry-run --config {names['svcd']} --rpc-url {environment['RPC_URL']}", environment)
    assert shown.code == 0, shown.text
    _fits(shown)
