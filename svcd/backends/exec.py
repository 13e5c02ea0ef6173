"""A program per job: JSON in on its standard input, JSON out on its standard output.

    in      {"job_id", "model", "modality", "input", "units_in", "units_out", "seconds"}      seconds: time it has
    out     {"output", "completion_tok"?, "usage"?}

    exit 0     the output is on standard output
    exit 65    the input is wrong in itself: the job fails, and the program is not to blame
    exit 75    not now: another attempt may succeed
    any other, or a signal: the job fails, and the program is to blame

It leads a process group of its own. However it ends, the whole group is ended with it: asked by SIGTERM first where it
is given up, killed after `grace_seconds`. A descendant that leaves the group leaves this reach (systemd's control group
still holds it).

It runs as svcd's own user and must not reach what is svcd's alone (keys, credentials, journal, memory): `confined.py`
starts it without them.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from common.pricing.assets import read_count
from common.pricing.units import text_units
from common.refusal import Refused
from common.strict_json import canonical
from svcd.backends.attempts import Attempts, Signs, TryAgain
from svcd.backends.http_answers import for_the_seal, read_object
from svcd.backends.settings import ExecSettings
from svcd.errors import JobFailed
from svcd.job.held import Output, Work

# Starts a program that cannot reach given files: `python -I -S confined.py N PATH… COMMAND…` keeps it from N paths.
#
# The program runs as svcd's own user, to whom systemd's credentials, the journal and key files belong. Landlock takes
# what lies at those paths from it and from all its descendants, for good, and with that ptrace and /proc/PID/mem of
# every
# process outside of them, and (from Linux 6.12 on) signals to those. /proc/PID/environ of svcd it does not take: svcd
# closes that itself (`common/hidden_memory.py`).
#
# Landlock only grants. Everything is granted but the paths and the directories above them; of those, what is in them
# is
# granted one by one, as it is at the start. Names can be listed everywhere.
#
# This file is run by itself: it imports nothing of svcd, and nothing that is not Python's own. Exit status 126: the
# program was not started, standard error says why.

NOT_STARTED = 126

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION, _BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_LIST = 1 << 3
_OF_FILES = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)  # execute, write, read, truncate, ioctl
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights on files each version of Landlock knows
_SIGNALS = 2  # a scope, from version 6 on


class Unavailable(Exception):
    """Landlock is not there, or does not take what it is told."""


def version() -> int:
    """Of the kernel's Landlock; 0 where there is none."""
    known: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, known)


def confine(kept: Sequence[str]) -> None:
    """For this thread and all that it starts."""
    libc, known = _libc(), version()
    if known == 0:
        raise Unavailable("this kernel has no Landlock (Linux 5.13 and lsm=landlock)")
    handled = (1 << _RIGHTS.get(known, 16)) - 1
    attributes = (ctypes.c_uint64 * 3)(handled, 0, _SIGNALS if known >= 6 else 0)
    size = 24 if known >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        raise Unavailable(f"Landlock takes no ruleset: {os.strerror(ctypes.get_errno())}")
    _grant(libc, ruleset, "/", _LIST)
    for path in granted(kept):
        _grant(libc, ruleset, path, handled)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)):
        raise Unavailable(f"Landlock does not restrict: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def granted(kept: Sequence[str]) -> Iterator[str]:
    """Everything but the kept paths, as few paths as can say it."""
    # A path may lead over links: the link's own place is kept as well as what it leads to.
    whole = {os.path.abspath(path) for path in kept} | {os.path.realpath(path) for path in kept}
    yield from _beside("/", whole)


def _beside(directory: str, kept: set[str]) -> Iterator[str]:
    if directory in kept:
        return
    if not any(path.startswith(directory.rstrip("/") + "/") for path in kept):
        yield directory
        return
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # what this user cannot look into is not granted
    for entry in entries:
        # A link is granted where it leads to, by being reached from there; itself it is no place.
        if not entry.is_symlink():
            yield from _beside(entry.path, kept)


def _grant(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it went away, or is not ours to reach
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)  # packed: no padding
        if libc.syscall(_ADD_RULE, ruleset, _BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0)):
            raise Unavailable(f"Landlock takes no rule for {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def main(arguments: Sequence[str]) -> int:
    count = int(arguments[0])
    kept, command = arguments[1 : count + 1], arguments[count + 1 :]
    try:
        confine(kept)
        os.execv(command[0], list(command))  # noqa: S606 - starting it is what this is for
    except (Unavailable, OSError) as trouble:
        sys.stderr.write(f"{command[0]} was not started: {trouble}\n")
    return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


_DATA_ERROR: Final = 65  # sysexits.h EX_DATAERR
_TRY_AGAIN: Final = 75  # sysexits.h EX_TEMPFAIL
_STDERR_TAIL: Final = 2048
_LAST_WORDS_SECONDS: Final = 1.0
_PIECE: Final = 64 * 1024


@attrs.define(slots=True)
class _Heard:
    """What the program has written so far."""

    output: bytearray = attrs.field(factory=bytearray)
    complaint: bytearray = attrs.field(factory=bytearray)
    too_long: bool = False


@attrs.frozen(slots=True)
class ExecBackend:
    """`private`: what the programs are kept from."""

    settings: ExecSettings
    private: Sequence[Path] = ()

    async def run(self, work: Work) -> Output:
        backoff = self.settings.backoff_seconds
        return await Attempts(self.settings.attempts, backoff, backoff * 8).run(
            work, lambda signs: self._attempt(work, signs)
        )

    async def is_up(self) -> bool:
        return os.access(self.settings.command[0], os.X_OK)

    async def _attempt(self, work: Work, signs: Signs) -> Output:
        try:
            process = await trio.lowlevel.open_process(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.settings.directory,
                # Nothing of svcd's own environment: keys and credentials may stand in it.
                env={"PATH": os.defpath} | self.settings.environment,
                start_new_session=True,
            )
        except OSError as broken:
            raise JobFailed("backend_error", f"the program cannot be started: {broken.strerror}", True) from None
        signs.of_life = True
        heard = _Heard()
        try:
            await self._converse(process, _request(work), heard)
        finally:
            await self._end(process)
        return self._judge(process, heard, work)

    def _command(self) -> list[str]:
        command = list(self.settings.command)
        if not self.settings.confine:
            return command
        kept = [str(path) for path in self.private]
        return [sys.executable, "-I", "-S", __file__, str(len(kept)), *kept, *command]

    async def _converse(self, process: trio.Process, request: bytes, heard: _Heard) -> None:
        """Until the program has ended and both of its outputs are read."""
        async with trio.open_nursery() as readers:
            readers.start_soon(_tell, process, request)
            readers.start_soon(_hear, process, heard, self.settings.longest_answer_bytes)
            readers.start_soon(_hear_complaint, process, heard)
            await process.wait()
            _signal_group(process, signal.SIGKILL)  # what it left running, which may hold the pipes open
            readers.cancel_scope.deadline = trio.current_time() + _LAST_WORDS_SECONDS

    async def _end(self, process: trio.Process) -> None:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                _signal_group(process, signal.SIGTERM)
                with trio.move_on_after(self.settings.grace_seconds):
                    await process.wait()
                _signal_group(process, signal.SIGKILL)
                await process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    await trio.aclose_forcefully(pipe)

    def _judge(self, process: trio.Process, heard: _Heard, work: Work) -> Output:
        complaint = heard.complaint.decode("utf-8", "replace").strip()
        if heard.too_long:
            raise JobFailed("backend_error", f"it wrote more than {self.settings.longest_answer_bytes} bytes", True)
        if process.returncode == _DATA_ERROR:
            raise JobFailed("backend_error", f"the program refused the input: {complaint}")
        if process.returncode == _TRY_AGAIN:
            raise TryAgain(f"the program asks for another attempt: {complaint}")
        if process.returncode == NOT_STARTED and self.settings.confine:
            raise JobFailed("backend_error", f"the program cannot be started: {complaint}", True)
        if process.returncode != 0:
            raise JobFailed("backend_error", f"the program ended with {process.returncode}: {complaint}", True)
        return _output(read_object(bytes(heard.output)), work)


def _request(work: Work) -> bytes:
    return json.dumps(
        {
            "job_id": "0x" + work.job_id.hex(),
            "model": work.model,
            "modality": work.modality,
            "input": work.input,
            "units_in": work.units_in,
            "units_out": work.units_out,
            "seconds": round(work.deadline - trio.current_time(), 3),
        }
    ).encode()


def _output(answer: dict[str, object], work: Work) -> Output:
    if "output" not in answer:
        raise JobFailed("backend_error", "the program's JSON holds no output", True)
    output, usage = for_the_seal(answer["output"]), for_the_seal(answer.get("usage", {}))
    if not isinstance(usage, dict):
        raise JobFailed("backend_error", "the program's usage is not an object", True)
    return Output(output, min(_units(answer, output, work), work.units_out), usage)


def _units(answer: dict[str, object], output: object, work: Work) -> int:
    """The program's count; without one, the market's measure for text, and all that was paid for a shape."""
    if "completion_tok" in answer:
        try:
            return read_count(answer["completion_tok"], "completion_tok")
        except Refused as refusal:
            raise JobFailed("backend_error", str(refusal), True) from None
    return text_units(len(canonical(output))) if work.modality == "text" else work.units_out


async def _tell(process: trio.Process, request: bytes) -> None:
    if process.stdin is None:
        return
    try:
        async with process.stdin:
            await process.stdin.send_all(request)
    except trio.BrokenResourceError:
        return  # it may end without having read, and says why by its exit code


async def _hear(process: trio.Process, heard: _Heard, longest: int) -> None:
    while process.stdout is not None and (piece := await process.stdout.receive_some(_PIECE)):
        heard.output += piece
        if len(heard.output) > longest:
            heard.too_long = True
            _signal_group(process, signal.SIGKILL)
            return


async def _hear_complaint(process: trio.Process, heard: _Heard) -> None:
    while process.stderr is not None and (piece := await process.stderr.receive_some(_PIECE)):
        heard.complaint += piece
        del heard.complaint[:-_STDERR_TAIL]


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)  # a session's leader: its process id is the group's
    except ProcessLookupError:
        return  # nobody of the group is left
