"""Runs programs on a real pseudo-terminal of a given width."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import attrs

HEIGHT = 40
_INTERRUPTS: Final = 3
_INTERRUPT_S: Final = 20.0
_MOVE = re.compile(r"\x1b\[[0-9;]*H")  # starts a redraw of the full screen
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")


@attrs.frozen
class Shown:
    """Everything a program wrote to its terminal."""

    code: int
    raw: str

    @property
    def lines(self) -> list[str]:
        """Lines as written, without escape sequences."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", _ESCAPE.sub("", _MOVE.sub("\n", self.raw)))]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def cells(line: str) -> int:
    """Return the columns that a line takes on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line if not unicodedata.combining(sign)
    )


@attrs.define
class PseudoTerminal:
    """A program and the terminal it runs on."""

    process: "subprocess.Popen[bytes]"
    controller: int
    _written: bytearray = attrs.field(factory=bytearray)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], columns: int) -> "PseudoTerminal":
        controller, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, columns, 0, 0))
        variables = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = subprocess.Popen(
            list(command),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**variables, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(terminal)
        started = cls(process, controller)
        started._reader = threading.Thread(target=started._read, daemon=True)
        started._reader.start()
        return started

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self.controller, 65536)
            except OSError:  # Linux answers EIO once the program has closed the terminal
                return
            if not piece:
                return
            self._written += piece

    @property
    def shown(self) -> str:
        return _ESCAPE.sub("", self._written.decode("utf-8", "replace"))

    def type(self, keys: str) -> None:
        os.write(self.controller, keys.encode())

    def wait_for(self, what: Callable[[str], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not what(self.shown):
            assert self.process.poll() is None, f"it ended: {self.shown}"
            assert time.monotonic() < deadline, f"it only wrote: {self.shown}"
            time.sleep(0.02)

    def interrupt(self) -> Shown:
        """Send SIGINT until the program ends, as Python does not notice one between a prompt and the read."""
        for _ in range(_INTERRUPTS):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_INTERRUPT_S)
                break
        return self.end()

    def end(self, seconds: float = 60) -> Shown:
        """Wait for the program to exit."""
        try:
            code = self.process.wait(seconds)
        finally:
            self.process.kill()
        assert self._reader is not None
        self._reader.join(10)
        os.close(self.controller)
        return Shown(code, self._written.decode("utf-8", "replace"))
