"""Read lines from a terminal or a pipe without blocking the event loop, so that Ctrl-C ends the command at once."""

import os
import sys
from typing import Final

import anyio
import attrs
from anyio import to_thread

_MAX_READ_BYTES: Final = 65_536


@attrs.define
class LineInput:
    """Reads lines from standard input. On Windows, and for regular files, a thread reads the input."""

    _buffer: bytearray = attrs.field(factory=bytearray)
    _ended: bool = False

    async def read_line(self) -> str | None:
        """Return the next line without its line break, or None at the end of the input (Ctrl-D)."""
        while b"\n" not in self._buffer and not self._ended:
            chunk = await _read_chunk()
            self._ended = not chunk
            self._buffer += chunk
        if not self._buffer:
            return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line.decode("utf-8", "replace").rstrip("\r")


async def _read_chunk() -> bytes:
    descriptor = sys.stdin.fileno()
    if sys.platform != "win32":
        try:
            await anyio.wait_readable(descriptor)
        except OSError:  # the event loop cannot wait for a regular file
            pass
        else:
            return os.read(descriptor, _MAX_READ_BYTES)
    return await to_thread.run_sync(os.read, descriptor, _MAX_READ_BYTES, abandon_on_cancel=True)
