"""The error that stops a daemon."""

import attrs


@attrs.frozen(slots=True)
class Fatal(Exception):
    """The daemon cannot run: a wrong configuration, a port that is taken, a chain that is not the expected one."""

    message: str

    def __str__(self) -> str:
        return self.message
