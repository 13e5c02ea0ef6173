"""Run a program per job, with JSON on its standard input and output.

    stdin   {"job_id", "model", "modality", "input", "units_in", "units_out", "seconds"}    seconds: until the deadline
    stdout  {"output", "completion_tok"?, "usage"?}

    exit 0     the output is on standard output
    exit 65    the input is invalid: the job fails, and this is not a backend fault
    exit 75    temporary failure: the job is retried
    other exit status, or a signal: the job fails, and this is a backend fault

The program leads a process group, which is killed when the program ends. A cancelled program gets SIGTERM, and is
killed after two seconds. A descendant that leaves the group is stopped only by systemd's control group.

The program runs as svcd's user. `confined.py` blocks its access to svcd's keys, credentials, journal and memory.
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
from svcd.backends.attempts import AttemptPolicy, BackendActivity, TryAgain
from svcd.backends.backend import OnDelta
from svcd.backends.http_answers import read_json_object, to_sealable_json
from svcd.backends.settings import ExecSettings
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput

_DATA_ERROR_STATUS: Final = 65  # sysexits.h EX_DATAERR
_TRY_AGAIN_STATUS: Final = 75  # sysexits.h EX_TEMPFAIL
_STDERR_TAIL_BYTES: Final = 2048
_OUTPUT_DRAIN_TIMEOUT_S: Final = 1.0
_READ_CHUNK_BYTES: Final = 64 * 1024


@attrs.define(slots=True)
class _ProgramOutput:
    """Output of the program so far. `stderr` has only the last bytes."""

    stdout: bytearray = attrs.field(factory=bytearray)
    stderr: bytearray = attrs.field(factory=bytearray)
    is_too_long: bool = False


@attrs.frozen(slots=True)
class ExecBackend:
    """Backend that runs programs without access to the `private_paths`."""

    settings: ExecSettings
    private_paths: Sequence[Path] = ()

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        backoff = self.settings.backoff_s
        return await AttemptPolicy(self.settings.attempts, backoff, backoff * 8).run(
            work, lambda activity: self._attempt(work, activity)
        )

    async def is_up(self) -> bool:
        return os.access(self.settings.command[0], os.X_OK)

    async def explain_unknown_model(self, model: str) -> str | None:
        return None  # a program has no list of names

    async def _attempt(self, work: ModelWork, activity: BackendActivity) -> WorkOutput:
        try:
            process = await trio.lowlevel.open_process(
                self._command_line(),
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
        activity.has_reacted = True
        captured = _ProgramOutput()
        try:
            await self._send_and_read(process, _request_json(work), captured)
        finally:
            await self._stop_process(process)
        return self._read_result(process, captured, work)

    def _command_line(self) -> list[str]:
        command = list(self.settings.command)
        if not self.settings.confine:
            return command
        blocked = [str(path) for path in self.private_paths]
        return [sys.executable, "-I", "-S", confined.__file__, str(len(blocked)), *blocked, *command]

    async def _send_and_read(self, process: trio.Process, request: bytes, captured: _ProgramOutput) -> None:
        """Send the request and read both outputs until the program ends."""
        async with trio.open_nursery() as readers:
            readers.start_soon(_send_request, process, request)
            readers.start_soon(_read_output, process, captured, self.settings.max_answer_bytes)
            readers.start_soon(_read_stderr, process, captured)
            await process.wait()
            _signal_group(process, signal.SIGKILL)  # descendants of the program may still have the pipes open
            readers.cancel_scope.deadline = trio.current_time() + _OUTPUT_DRAIN_TIMEOUT_S

    async def _stop_process(self, process: trio.Process) -> None:
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

    def _read_result(self, process: trio.Process, captured: _ProgramOutput, work: ModelWork) -> WorkOutput:
        stderr = captured.stderr.decode("utf-8", "replace").strip()
        if captured.is_too_long:
            raise WorkFailed(
                "backend_error",
                f"the program wrote more than {self.settings.max_answer_bytes} bytes to standard output",
                True,
            )
        if process.returncode == _DATA_ERROR_STATUS:
            raise WorkFailed("backend_error", f"the program refused the input: {stderr}")
        if process.returncode == _TRY_AGAIN_STATUS:
            raise TryAgain(f"the program requested a retry (exit status {_TRY_AGAIN_STATUS}): {stderr}")
        if process.returncode == confined.NOT_STARTED_STATUS and self.settings.confine:
            raise WorkFailed("backend_error", f"the program cannot be started: {stderr}", True)
        if process.returncode != 0:
            raise WorkFailed(
                "backend_error", f"the program ended with exit status {process.returncode}: {stderr}", True
            )
        return _build_work_output(read_json_object(bytes(captured.stdout)), work)


def _request_json(work: ModelWork) -> bytes:
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


def _build_work_output(answer: dict[str, object], work: ModelWork) -> WorkOutput:
    if "output" not in answer:
        raise WorkFailed("backend_error", "the program's JSON output has no member `output`", True)
    output, usage = to_sealable_json(answer["output"]), to_sealable_json(answer.get("usage", {}))
    if not isinstance(usage, dict):
        raise WorkFailed("backend_error", "the member `usage` of the program's JSON output is not an object", True)
    return WorkOutput(output, min(_output_units(answer, output, work), work.units_out), usage)


def _output_units(answer: dict[str, object], output: object, work: ModelWork) -> int:
    """Return the program's count of output units. Without a count, count the units of a text, or use `units_out`."""
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
        return  # the program may exit without reading the request; the exit status shows the reason


async def _read_output(process: trio.Process, captured: _ProgramOutput, max_bytes: int) -> None:
    while process.stdout is not None and (piece := await process.stdout.receive_some(_READ_CHUNK_BYTES)):
        captured.stdout += piece
        if len(captured.stdout) > max_bytes:
            captured.is_too_long = True
            _signal_group(process, signal.SIGKILL)
            return


async def _read_stderr(process: trio.Process, captured: _ProgramOutput) -> None:
    while process.stderr is not None and (piece := await process.stderr.receive_some(_READ_CHUNK_BYTES)):
        captured.stderr += piece
        del captured.stderr[:-_STDERR_TAIL_BYTES]


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)  # the program leads its session, so its pid is also the group's id
    except ProcessLookupError:
        return  # the group has no processes left
