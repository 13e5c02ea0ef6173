"""Many providers that poll over kept connections, in a separate process.

`python -m tests.support.faults.polling_crowd HOST PORT SIZE PATH PAUSE`: each provider has a connection and a session
(`token`), and polls again PAUSE seconds after each response. The process prints "polling" once every provider has had a
response. When its input ends, all poll a last time, simultaneously. Then it prints the results as JSON: responses per
status, lost connections, and the pollers that got each job.
"""

import asyncio
import hashlib
import json
import sys
from collections import Counter, defaultdict
from typing import Final, cast

import uvloop

CONNECTS_AT_A_TIME: Final = 500  # because no listen queue holds all connections


def token(poller: int) -> str:
    return "svc_sess_" + hashlib.sha256(b"poller %d" % poller).hexdigest()[:43]


class Crowd:
    def __init__(self, host: str, port: int, path: str, pause: float) -> None:
        self.place = (host, port)
        self.path = path
        self.pause = pause
        self.stopping = False
        self.statuses: Counter[int] = Counter()
        self.lost = 0
        self.holders: dict[str, set[int]] = defaultdict(set)

    def request(self, poller: int) -> bytes:
        head = f"GET {self.path} HTTP/1.1\r\nhost: {self.place[0]}\r\nauthorization: Bearer {token(poller)}\r\n\r\n"
        return head.encode()

    def answered(self, poller: int, status: int, body: bytes) -> None:
        self.statuses[status] += 1
        if status == 200:
            for job in json.loads(body)["jobs"]:
                self.holders[job["job_id"]].add(poller)


class Poller(asyncio.Protocol):
    """`first` is set after the first response, and `done` after the last. Both are set if the connection is lost."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._number = number
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.TimerHandle | None = None
        self._last = False
        self.first = asyncio.Event()
        self.done = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def poll(self) -> None:
        assert self._transport is not None
        self._next = None
        self._last = self._crowd.stopping
        self._transport.write(self._crowd.request(self._number))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._received = b""
        self._crowd.answered(self._number, int(head.split(b" ", 2)[1]), body)
        self.first.set()
        if self._last:
            self.done.set()
        else:
            pause = 0.0 if self._crowd.stopping else self._crowd.pause
            self._next = asyncio.get_running_loop().call_later(pause, self.poll)

    def hurry(self) -> None:
        """Poll now, unless a response is pending."""
        if self._next is not None:
            self._next.cancel()
            self.poll()

    def connection_lost(self, _: Exception | None) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if not self.done.is_set():
            self._crowd.lost += 1
        self.first.set()
        self.done.set()


async def _poll(host: str, port: int, size: int, path: str, pause: float) -> None:
    crowd = Crowd(host, port, path, pause)
    pollers = [Poller(crowd, number) for number in range(size)]
    loop = asyncio.get_running_loop()

    async def join(poller: Poller) -> None:
        await loop.create_connection(lambda: poller, host, port)
        poller.poll()
        await poller.first.wait()

    for at in range(0, size, CONNECTS_AT_A_TIME):
        await asyncio.gather(*[join(poller) for poller in pollers[at : at + CONNECTS_AT_A_TIME]])
    _tell("polling")
    await loop.run_in_executor(None, sys.stdin.read)
    crowd.stopping = True
    for poller in pollers:
        poller.hurry()
    for poller in pollers:
        await poller.done.wait()
    holders = {job: sorted(who) for job, who in crowd.holders.items()}
    _tell(json.dumps({"statuses": crowd.statuses, "lost": crowd.lost, "holders": holders}))


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    host, port, size, path, pause = sys.argv[1:]
    uvloop.run(_poll(host, int(port), int(size), path, float(pause)))


if __name__ == "__main__":
    main()
