"""Read key presses from a terminal, one at a time and without echo."""

import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import anyio


async def read_key_presses() -> AsyncGenerator[str, None]:
    """Yield each key when it is pressed. Arrow keys are escape sequences. Without a terminal, wait forever."""
    if not sys.stdin.isatty():
        await anyio.sleep_forever()
    if sys.platform == "win32":
        async for key in _windows_keys():
            yield key
        return
    import termios  # noqa: PLC0415 - does not exist on Windows
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        while True:
            await anyio.wait_readable(descriptor)
            pressed = os.read(descriptor, 16)
            if not pressed:
                return
            yield pressed.decode("utf-8", "replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)


async def _windows_keys() -> AsyncGenerator[str, None]:
    from importlib import import_module  # noqa: PLC0415 - Windows only

    console: Any = import_module("msvcrt")
    arrows = {"M": "\x1b[C", "K": "\x1b[D"}
    while True:
        while not console.kbhit():  # noqa: ASYNC110 - a Windows console has no event
            await anyio.sleep(0.05)
        key: str = console.getwch()
        yield arrows.get(console.getwch(), "") if key in ("\x00", "\xe0") else key
