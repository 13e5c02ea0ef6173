"""Runs the shell blocks of a page in order, with a test folder as the root of the machine."""

import re
import subprocess
from pathlib import Path

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def chapter(page: Path, heading: str) -> list[str]:
    """Return the shell blocks under a heading of the second level."""
    section = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


def way_back(page: Path, heading: str) -> str:
    """Return the commands in the sentences of the paragraph "To go back" under a heading."""
    section = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    paragraph = section.partition("**To go back**")[2].partition("\n\n")[0]
    return "\n".join(re.findall(r"`([^`]+)`", paragraph)) + "\n"


class PageShell:
    """One shell session: variables and functions of a block stay defined for the next. Paths under /etc, /opt and /var
    are moved below `root`."""

    def __init__(self, root: Path, environment: dict[str, str], cwd: Path | None = None) -> None:
        self.root, self.environment, self.cwd = root, environment, cwd or root
        self._state = root / "page-shell.sh"
        self._state.write_text("")

    def run(self, block: str) -> str:
        """Run the block and return its output. Every command must succeed."""
        text = re.sub(r"(?<![\w./$}])/(?=(etc|opt|var)/)", f"{self.root}/", block)
        keep = f'{{ declare -px; declare -f; umask -p; }} > "{self._state}"'
        script = f'. "{self._state}"\nset -euo pipefail\nset -a\n{text}\nset +a\n{keep}\n'
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.cwd, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\nprinted:\n{done.stdout}\n{done.stderr}"
        return done.stdout
