"""Every program on a real pseudo-terminal, of 80 and of 120 columns."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from devnet.ports import pick_free
from svc.cli.commands.watch import PANES
from svc.cli.exit_codes import Exit
from tests.e2e.conftest import Market
from tests.pseudo_terminal import PseudoTerminal, Shown, cells

pytestmark = pytest.mark.long

_WIDTHS = (80, 120)
_WATCHED_S = 60
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


def _start(line: str, environment: Mapping[str, str], columns: int) -> PseudoTerminal:
    program, *rest = shlex.split(line)
    if program == "coordinatord":  # it takes another program's variables for misspelt ones of its own
        environment = {name: value for name, value in environment.items() if not name.startswith("SVC")}
    return PseudoTerminal.start([str(Path(sys.executable).with_name(program)), *rest], environment, columns)


def _run(line: str, environment: Mapping[str, str], columns: int) -> Shown:
    return _start(line, environment, columns).end()


@pytest.fixture(scope="module")
def environment(market: Market, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that any program takes this market's settings from."""
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
    """A job, a batch and a webhook, bought on a terminal; the words that commands name them by."""
    folder = tmp_path_factory.mktemp("bought")
    lines = folder / "lines.jsonl"
    lines.write_text(
        "".join(json.dumps({"body": {"model": "demo/text-small", "input": f"hi {n}"}}) + "\n" for n in range(5))
    )
    bought = _run(f"svc run demo/text-small {shlex.quote(_PROMPT)} --final", environment, 80)
    assert bought.code == Exit.DONE, bought.text
    batch = _run(f"svc batch run {lines} --window 1h --out {folder / 'out.jsonl'}", environment, 80)
    assert batch.code == Exit.DONE, batch.text
    hook = "https://hooks.example.org/" + "a-long-path/" * 4
    assert _run(f"svc webhooks add {hook} job.settled batch.completed", environment, 80).code == Exit.DONE
    return {
        "job": next(line.split()[1] for line in bought.lines if line.startswith("job 0x")),
        "batch": next(line.split()[1] for line in batch.lines if line.startswith("batch batch_")),
        "lines": str(lines),
        "svcd": str(market.state / "provider" / "svcd.toml"),
    }


@pytest.mark.parametrize("columns", _WIDTHS)
@pytest.mark.parametrize("line", _TABLES.split("\n")[1:-1])
def test_table_fits_a_real_terminal(
    environment: Mapping[str, str], names: dict[str, str], line: str, columns: int
) -> None:
    shown = _run(line.format_map(names), environment, columns)
    assert shown.code == 0, shown.text
    _fits(shown, columns)


def _fits(shown: Shown, columns: int) -> None:
    assert "Traceback" not in shown.text
    # The terminal itself wraps warnings, which are prose, and a path or an id that is longer than a line.
    long = [line for line in shown.lines if cells(line) > columns and not line.startswith("svc: warning")]
    assert not [line for line in long if len(line.split()) > 1]


@pytest.mark.timeout(_WATCHED_S + 60)
def test_watch_runs_for_a_minute_on_every_pane(environment: Mapping[str, str], names: dict[str, str]) -> None:
    started = {
        (pane, columns): _start(f"svc watch --pane {pane}", environment, columns)
        for pane in PANES
        for columns in _WIDTHS
    }
    for terminal in started.values():
        terminal.wait_for(lambda shown: "live, block" in shown)
    time.sleep(_WATCHED_S)  # the terminals' own time: nothing else shows that they last
    for (pane, columns), terminal in started.items():
        assert terminal.process.poll() is None, (pane, terminal.shown)
        terminal.type("q")
        shown = terminal.end()
        assert shown.code == Exit.DONE, (pane, shown.text)
        _fits(shown, columns)


@pytest.mark.parametrize("columns", _WIDTHS)
def test_prompts_are_answered_on_a_terminal(
    environment: Mapping[str, str], names: dict[str, str], tmp_path: Path, columns: int
) -> None:
    keystore = tmp_path / "keystore.json"
    asked = _start(f"svc keygen --encrypted --out {keystore}", environment, columns)
    for times in (1, 2):
        asked.wait_for(lambda shown, times=times: shown.count(": ") >= times)  # type: ignore[misc] # bound as it is now
        asked.type("a long password\n")
    assert asked.end().code == Exit.DONE
    assert keystore.exists()
    dear = "svc run demo/text-small hi --rate-in 1000000000 --rate-out 1000000000 --provider 1"
    asked = _start(dear, environment, columns)
    asked.wait_for(lambda shown: "Pay it?" in shown)
    asked.type("n\n")
    shown = asked.end()
    assert shown.code == Exit.REFUSED, shown.text
    assert "Traceback" not in shown.text


def test_daemon_logs_to_a_terminal_until_interrupted(environment: Mapping[str, str]) -> None:
    ports = {"PORT": str(pick_free()), "METRICS_PORT": str(pick_free())}
    terminal = _start("coordinatord serve", {**environment, **ports}, 80)
    terminal.wait_for(lambda shown: "serving" in shown)
    terminal.process.send_signal(signal.SIGTERM)
    shown = terminal.end()
    assert shown.code == 0, shown.text
    assert "Traceback" not in shown.text
