"""Notify systemd of readiness, stopping, status and the watchdog."""

import os
import socket
from collections.abc import Mapping

import anyio


class Systemd:
    """systemd's notification socket for this service. Without systemd, the methods do nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog = environ.get("WATCHDOG_USEC", "")
        # Half of WATCHDOG_USEC, as the systemd manual recommends.
        self.watchdog_interval_s = int(watchdog) / 2_000_000 if watchdog.isdigit() and int(watchdog) else None

    def notify(self, *lines: str) -> None:
        """Send notifications, e.g. `READY=1`, `STOPPING=1`, `WATCHDOG=1` or `STATUS=...`. Ignore socket errors."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

    async def feed_watchdog(self) -> None:
        """Feed the watchdog from the event loop, so that systemd restarts the process if the loop hangs."""
        if self.watchdog_interval_s is None:
            return
        while True:
            self.notify("WATCHDOG=1")
            await anyio.sleep(self.watchdog_interval_s)
