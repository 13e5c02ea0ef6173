"""Release of the daemons, and the error that stops one."""

from typing import Final

import attrs

RELEASE: Final = "0.1.0"
"""The release that runs: the one version of all three programs, as pyproject.toml has it (a test compares the two).
Reading the installed metadata instead would import a dozen modules."""


@attrs.frozen(slots=True)
class Fatal(Exception):
    """The daemon cannot run: a wrong configuration, a port that is taken, a chain that is not the expected one."""

    message: str

    def __str__(self) -> str:
        return self.message
