"""Run a program per job, with JSON on its standard input and output.

    in      {"job_id", "model", "modality", "input", "units_in", "units_out", "seconds"}      seconds: time it has
    out     {"output", "completion_tok"?, "usage"?}

    exit 0     the output is on standard output
    exit 65    the input is invalid: the job fails, and this is not a backend fault
    exit 75    temporary failure: the job is retried
    any other, or a signal: the job fails with a backend fault

The program leads a process group, which is killed when the program ends. A cancelled program gets SIGTERM, and is
killed after two seconds. A descendant that leaves the group is stopped only by systemd's control group.

The program runs as svcd's user. `confined.py` keeps it from svcd's keys, credentials, journal and memory.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from common.canonical_json import canonical
from common.pricing.model_input import read_count
from common.pricing.units import text_units
from common.refusal import Refused
from svcd.backends import confined
from svcd.backends.attempts import Attempts, Signs, TryAgain
from svcd.backends.http_answers import for_the_seal, read_object
from svcd.backends.settings import ExecSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

_DATA_ERROR_STATUS: Final = 65  # sysexits.h EX_DATAERR
_TRY_AGAIN_STATUS: Final = 75  # sysexits.h EX_TEMPFAIL
_STDERR_TAIL_BYTES: Final = 2048
_STDERR_WAIT_S: Final = 1.0
_PIECE_BYTES: Final = 64 * 1024


@attrs.define(slots=True)
class _ProgramOutput:
    """Output of the program so far."""

    output: bytearray = attrs.field(factory=bytearray)
    stderr: bytearray = attrs.field(factory=bytearray)
    too_long: bool = False


@attrs.frozen(slots=True)
class ExecBackend:
    """Backend that runs programs without access to the `private` paths."""

    settings: ExecSettings
    private: Sequence[Path] = ()

    async def run(self, work: ModelWork) -> WorkOutput:
        backoff = self.settings.backoff_s
        return await Attempts(self.settings.attempts, backoff, backoff * 8).run(
            work, lambda signs: self._attempt(work, signs)
        )

    async def is_up(self) -> bool:
        return os.access(self.settings.command[0], os.X_OK)

    async def unknown_name(self, model: str) -> str | None:
        return None  # a program has no list of names

    async def _attempt(self, work: ModelWork, signs: Signs) -> WorkOutput:
        try:
            process = await trio.lowlevel.open_process(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.settings.directory,
                # svcd's own environment may contain keys and credentials.
                env={"PATH": os.defpath} | self.settings.environment,
                start_new_session=True,
            )
        except OSError as broken:
            raise WorkFailed("backend_error", f"the program cannot be started: {broken.strerror}", True) from None
        signs.of_life = True
        captured = _ProgramOutput()
        try:
            await self._converse(process, _request(work), captured)
        finally:
            await self._end(process)
        return self._judge(process, captured, work)

    def _command(self) -> list[str]:
        command = list(self.settings.command)
        if not self.settings.confine:
            return command
        kept = [str(path) for path in self.private]
        return [sys.executable, "-I", "-S", confined.__file__, str(len(kept)), *kept, *command]

    async def _converse(self, process: trio.Process, request: bytes, captured: _ProgramOutput) -> None:
        """Send the request and read both outputs until the program ends."""
        async with trio.open_nursery() as readers:
            readers.start_soon(_send_request, process, request)
            readers.start_soon(_read_output, process, captured, self.settings.max_answer_bytes)
            readers.start_soon(_read_stderr, process, captured)
            await process.wait()
            _signal_group(process, signal.SIGKILL)  # remaining descendants may hold the pipes open
            readers.cancel_scope.deadline = trio.current_time() + _STDERR_WAIT_S

    async def _end(self, process: trio.Process) -> None:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                _signal_group(process, signal.SIGTERM)
                with trio.move_on_after(self.settings.grace_s):
                    await process.wait()
                _signal_group(process, signal.SIGKILL)
                await process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    await trio.aclose_forcefully(pipe)

    def _judge(self, process: trio.Process, captured: _ProgramOutput, work: ModelWork) -> WorkOutput:
        stderr = captured.stderr.decode("utf-8", "replace").strip()
        if captured.too_long:
            raise WorkFailed("backend_error", f"it wrote more than {self.settings.max_answer_bytes} bytes", True)
        if process.returncode == _DATA_ERROR_STATUS:
            raise WorkFailed("backend_error", f"the program refused the input: {stderr}")
        if process.returncode == _TRY_AGAIN_STATUS:
            raise TryAgain(f"the program asks for another attempt: {stderr}")
        if process.returncode == confined.NOT_STARTED and self.settings.confine:
            raise WorkFailed("backend_error", f"the program cannot be started: {stderr}", True)
        if process.returncode != 0:
            raise WorkFailed("backend_error", f"the program ended with {process.returncode}: {stderr}", True)
        return _output(read_object(bytes(captured.output)), work)


def _request(work: ModelWork) -> bytes:
    return json.dumps(
        {
            "job_id": work.id,
            "model": work.model,
            "modality": work.modality,
            "input": work.input,
            "units_in": work.units_in,
            "units_out": work.units_out,
            "seconds": round(work.deadline - trio.current_time(), 3),
        }
    ).encode()


def _output(answer: dict[str, object], work: ModelWork) -> WorkOutput:
    if "output" not in answer:
        raise WorkFailed("backend_error", "the program's JSON holds no output", True)
    output, usage = for_the_seal(answer["output"]), for_the_seal(answer.get("usage", {}))
    if not isinstance(usage, dict):
        raise WorkFailed("backend_error", "the program's usage is not an object", True)
    return WorkOutput(output, min(_units(answer, output, work), work.units_out), usage)


def _units(answer: dict[str, object], output: object, work: ModelWork) -> int:
    """Return the program's count, or else the market's measure for text and the order's `units_out` for media."""
    if "completion_tok" in answer:
        try:
            return read_count(answer["completion_tok"], "completion_tok")
        except Refused as refusal:
            raise WorkFailed("backend_error", str(refusal), True) from None
    return text_units(len(canonical(output))) if work.modality == "text" else work.units_out


async def _send_request(process: trio.Process, request: bytes) -> None:
    if process.stdin is None:
        return
    try:
        async with process.stdin:
            await process.stdin.send_all(request)
    except trio.BrokenResourceError:
        return  # the program may exit without reading its input; its exit code has the reason


async def _read_output(process: trio.Process, captured: _ProgramOutput, max_bytes: int) -> None:
    while process.stdout is not None and (piece := await process.stdout.receive_some(_PIECE_BYTES)):
        captured.output += piece
        if len(captured.output) > max_bytes:
            captured.too_long = True
            _signal_group(process, signal.SIGKILL)
            return


async def _read_stderr(process: trio.Process, captured: _ProgramOutput) -> None:
    while process.stderr is not None and (piece := await process.stderr.receive_some(_PIECE_BYTES)):
        captured.stderr += piece
        del captured.stderr[:-_STDERR_TAIL_BYTES]


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)  # the program leads its session, so its pid is also the group's id
    except ProcessLookupError:
        return  # the group has no processes left
