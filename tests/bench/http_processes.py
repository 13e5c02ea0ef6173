"""Servers and a load client, each in a separate process, for the HTTP benchmarks."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

PORTION: Final = 400


class Ask(Protocol):
    """Return a function that sends `portion` requests and returns the number of responses. `connections` counts those
    to each port. Each request carries the token `bearer`. `{id}` is the same number in the path and in the token."""

    def __call__(
        self, ports: Sequence[int], path: str, connections: int, bearer: str = "", portion: int = PORTION
    ) -> Callable[[], int]: ...


@contextmanager
def server(name: str, port: int, environment: Mapping[str, str]) -> Iterator[int]:
    """Run one of `tests.bench.http_servers`, and yield its process id."""
    command = [sys.executable, "-m", "tests.bench.http_servers", name, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": "", **environment}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def load_client() -> Iterator[Ask]:
    command = [sys.executable, "-m", "tests.bench.http_load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def ask(
            ports: Sequence[int], path: str, connections: int, bearer: str = "", portion: int = PORTION
        ) -> Callable[[], int]:
            def asked() -> int:
                to.write(f"127.0.0.1 {','.join(map(str, ports))} {path} {portion} {connections} {bearer}\n")
                to.flush()
                return int(back.readline())

            return asked

        try:
            yield ask
        finally:
            process.kill()
