"""Type the commands of svc's page for new buyers, and compare the output with the page.

`python -m tests.e2e.svc.test_first_hour FOLDER < commands` makes a new recording, in a folder with a fresh devnet's
`.devnet`.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import svc as package
from devnet import manifest
from tests.e2e.conftest import Market

PAGE = Path(package.__path__[0]).parent / "docs" / "buyers" / "quickstart.md"
_SECTION = re.compile(r"^## The first hour$.*?^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Values that differ each time: ids, hashes, keys, addresses, a provider's free slots, and ports.
_OTHERS = (
    (re.compile(r"(?:0x)?[0-9a-fA-F]{40,}"), "0x…"),
    (re.compile(r"batch_[0-9a-f]+"), "batch_…"),
    (re.compile(r"room for \d+"), "room for …"),
)
_PORT = re.compile(r"127\.0\.0\.1:\d+")


def recorded() -> list[tuple[str, str]]:
    """Return the recorded commands and their output."""
    found = _SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    parts = re.split(r"^\$ (.*)\n", found[1], flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def alike(text: str) -> str:
    for pattern, shown in _OTHERS:
        text = pattern.sub(shown, text)
    return "\n".join(line.rstrip() for line in _PORT.sub("127.0.0.1:PORT", text).splitlines())


class Terminal:
    """A shell at a terminal of 80 columns that cannot move the cursor."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.variables = folder, folder / ".variables"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**clean, "TERM": "dumb", "COLUMNS": "80", "PATH": path}

    def type(self, command: str) -> str:
        """Run one command and return its output. Exported variables are kept for the next command."""
        script = (
            f'if test -e "{self.variables}"; then . "{self.variables}"; fi\n{command}\nexport -p > "{self.variables}"'
        )
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs
        ) as shell:
            os.close(theirs)
            said = b""
            while chunk := _read(ours):
                said += chunk
            shell.wait(timeout=180)
        os.close(ours)
        return said.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # a terminal ends like this once all writers have closed
        return b""


@pytest.mark.long
def test_first_hour_says_what_is_recorded(market: Market, tmp_path: Path) -> None:
    (tmp_path / ".devnet").symlink_to(market.state)
    (market.state / manifest.KNOWN_MARKETS_FILE).unlink(missing_ok=True)  # forget the market, as for a new user
    terminal = Terminal(tmp_path)
    told = [(command, alike(terminal.type(command))) for command, _ in recorded()]
    assert told == [(command, alike(said)) for command, said in recorded()]


if __name__ == "__main__":
    shell = Terminal(Path(sys.argv[1]))
    for line in sys.stdin.read().splitlines():
        sys.stdout.write(f"$ {line}\n{shell.type(line)}")
