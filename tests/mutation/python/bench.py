"""Runs the mutants of one module within a single pytest session.

First, all tests run without a fault, to record which lines of the module each test runs and how long it takes. Then a
mutant's code replaces the loaded functions, and the tests of the changed lines run until one fails. Tests that killed
most mutants run first, then the fastest. Unit tests run in a fork, so a fault cannot damage the session. Integration
tests have services in threads, which a fork does not copy. For these, the code is restored afterwards, and the failed
test must pass again.
"""

import contextlib
import functools
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import pytest

from tests.mutation.python.mutants import Mutant

_PATIENCE: Final = 20.0  # minimum seconds for a test under a mutant; the limit is forty times its usual time
_PATIENT: Final = 40
_MEMORY: Final = 8 << 30
_FIRST: Final = 12
NO_END: Final = "(no end)"
SESSION_BROKEN: Final = 86
"""Exit status of a session that must be restarted, because a fault hung it or damaged state that tests share."""

_Codes: TypeAlias = dict[tuple[str, int], types.CodeType]


@attrs.define(eq=False)  # pytest keeps plugins in sets
class Bench:
    """A pytest plugin. `told` is called with each mutant and its killing test, or "" for none."""

    path: Path
    mutants: Sequence[Mutant]
    forks: int
    told: Callable[[Mutant, str], None]
    killers: Counter[str] = attrs.field(factory=Counter)
    _lines: dict[str, set[int]] = attrs.field(factory=dict)
    _seconds: dict[str, float] = attrs.field(factory=dict)
    _failed: bool = False
    _root: "_Root | None" = None

    def pytest_collection(self) -> None:
        """Disable the shrinking of failing examples, because only the failure matters."""
        import hypothesis  # noqa: PLC0415 - pytest wants to be the first that imports it

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutation", hypothesis.settings(), phases=phases, database=None)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        self._root = _Root.from_parent(session, name="root")
        self._learn(session.items)
        items = {item.nodeid: item for item in session.items}
        gc.freeze()
        running: dict[int, _Fork] = {}
        for mutant in self.mutants:
            names = self._reaching(mutant)
            tests = [items[name] for name in names]
            if not tests:
                self.told(mutant, "")
            elif self.forks:
                while len(running) >= self.forks:
                    self._reap(running)
                fork = self._forked(mutant, tests)
                running[fork.pid] = fork
            else:
                self._try_in_place(mutant, tests)
        while running:
            self._reap(running)
        session.testsfailed = 0  # from mutants
        return True

    def _learn(self, items: list[pytest.Item]) -> None:
        tracer = _Tracer(str(self.path))
        for item in items:
            lines = self._lines[item.nodeid] = set()
            started = time.process_time() if self.forks else time.monotonic()
            with tracer.into(lines):
                if not self._passes(item):
                    raise pytest.UsageError(f"fails without any fault: {item.nodeid}")
            self._seconds[item.nodeid] = (time.process_time() if self.forks else time.monotonic()) - started

    def _passes(self, item: pytest.Item) -> bool:
        self._failed = False
        # Session-wide fixtures are never torn down.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=self._root)
        return not self._failed

    def _reaching(self, mutant: Mutant) -> list[str]:
        reaching = [name for name, lines in self._lines.items() if not lines.isdisjoint(mutant.lines)]
        reaching.sort(key=lambda name: (self._seconds[name], name))
        first = [name for name, _ in self.killers.most_common() if name in reaching][:_FIRST]
        return first + [name for name in reaching if name not in first]

    def _first_failing(self, mutant: Mutant, tests: list[pytest.Item]) -> str:
        with _in_place_of(self.path, mutant.code(str(self.path))):
            for item in tests:
                with self._watched(mutant, _PATIENCE + _PATIENT * self._seconds[item.nodeid]):
                    passed = self._passes(item)
                if not passed:
                    return item.nodeid
        return ""

    @contextlib.contextmanager
    def _watched(self, mutant: Mutant, patience: float) -> Iterator[None]:
        if self.forks:
            signal.setitimer(signal.ITIMER_REAL, patience)
            yield
            return
        watch = threading.Timer(patience, self._hung, [mutant])
        watch.daemon = True
        watch.start()
        yield
        watch.cancel()

    def _hung(self, mutant: Mutant) -> None:
        self._tell(mutant, NO_END)
        os._exit(SESSION_BROKEN)

    def _forked(self, mutant: Mutant, tests: list[pytest.Item]) -> "_Fork":
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork may lose idle threads of earlier tests
            pid = os.fork()
        if pid:
            os.close(writing)
            return _Fork(pid, mutant, reading)
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the fork
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            os.write(writing, self._first_failing(mutant, tests).encode())
            status = 0
        except BaseException:  # an error of the bench, because pytest reports a test's exceptions
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(status)

    def _reap(self, running: dict[int, "_Fork"]) -> None:
        pid, status = os.waitpid(-1, 0)
        while pid not in running:  # a child process that a test left behind
            pid, status = os.waitpid(-1, 0)
        fork = running.pop(pid)
        with os.fdopen(fork.reading, "rb") as reading:
            by = reading.read().decode()
        if os.waitstatus_to_exitcode(status) > 0:
            raise RuntimeError(f"{fork.mutant.key} could not be tried: {by}")
        self._tell(fork.mutant, by if status == 0 else NO_END)

    def _try_in_place(self, mutant: Mutant, tests: list[pytest.Item]) -> None:
        by = self._first_failing(mutant, tests)
        if by and not self._passes(next(item for item in tests if item.nodeid == by)):
            os._exit(SESSION_BROKEN)  # the mutant will be tried again
        self._tell(mutant, by)

    def _tell(self, mutant: Mutant, by: str) -> None:
        if by and by != NO_END:
            self.killers[by] += 1
        self.told(mutant, by)


@attrs.frozen
class _Fork:
    pid: int
    mutant: Mutant
    reading: int


class _Root(pytest.Item):
    def runtest(self) -> None:
        raise NotImplementedError


@attrs.define(eq=False)
class _Tracer:
    """Records the lines of one file that run, in every thread. A thread left by an earlier test counts for the
    current test."""

    filename: str
    lines: set[int] = attrs.field(factory=set)

    @contextlib.contextmanager
    def into(self, lines: set[int]) -> Iterator[None]:
        self.lines = lines
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def _call(self, frame: types.FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != self.filename:
            return None
        self.lines.add(frame.f_lineno)
        return self._line

    def _line(self, frame: types.FrameType, event: str, argument: object) -> Any:
        self.lines.add(frame.f_lineno)
        return self._line


@contextlib.contextmanager
def _in_place_of(path: Path, code: types.CodeType) -> Iterator[None]:
    """Replace the code of a module's functions by that of another version, including nested functions and caches."""
    new: _Codes = {}
    _collect(code, new)
    put: list[tuple[types.FunctionType, types.CodeType]] = []
    for function in _functions(str(path)):
        before = function.__code__
        after = new.get((before.co_qualname, before.co_firstlineno))
        if after is not None and after != before and after.co_freevars == before.co_freevars:
            function.__code__ = after
            put.append((function, before))
    if not _functions(str(path)):
        raise RuntimeError(f"{path} was loaded from elsewhere")
    _forget_cached(str(path))
    try:
        yield
    finally:
        for function, before in put:
            function.__code__ = before
        _forget_cached(str(path))


@functools.cache
def _functions(filename: str) -> list[types.FunctionType]:
    gc.unfreeze()
    found = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]
    return [each for each in found if each.__code__.co_filename == filename]


@functools.cache
def _caches(filename: str) -> list[Any]:
    found = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
    codes = [(each, getattr(each.__wrapped__, "__code__", None)) for each in found]
    return [each for each, code in codes if code is not None and code.co_filename == filename]


def _forget_cached(filename: str) -> None:
    for each in _caches(filename):
        each.cache_clear()


def _collect(code: types.CodeType, into: _Codes) -> None:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            into[inner.co_qualname, inner.co_firstlineno] = inner
            _collect(inner, into)


def main() -> None:
    """Run one session. Reads mutants from standard input, and writes one outcome per line."""
    from tests.mutation.python.mutants import mutants_of  # noqa: PLC0415

    task = json.load(sys.stdin)
    wanted = set(task["mutants"])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    path = Path(task["module"]).resolve()

    def told(mutant: Mutant, by: str) -> None:
        answers.write(json.dumps([mutant.key, by]) + "\n")

    mutants = [mutant for mutant in mutants_of(task["module"], path) if mutant.key in wanted]
    bench = Bench(path, mutants, task["forks"], told, Counter(task["killers"]))
    options = ["-q", "--tb=short", "-p", "no:xdist", "--timeout=0", "-m", "not long"]
    sys.exit(pytest.main([*options, *task["tests"]], plugins=[bench]))


if __name__ == "__main__":
    main()
