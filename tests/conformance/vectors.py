"""Run test vectors through a program in any language: it reads a JSON line, writes a JSON line, and its output is
compared.

The program gets a case without its expected outputs. The table here lists the outputs, as `docs/protocol/vectors.md`
does for readers.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from common.refusal import Refused
from tests.conformance.verdicts import Report, shortened

Case = dict[str, Any]
_PAGE: Final = "protocol/vectors.md#"
_LONGEST_LINE: Final = 64 << 20
_SECONDS: Final = 60.0  # timeout of one output

# Expected outputs of a case, by file.
OUTPUTS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(members.split())
    for name, members in {
        "address_book": "",
        "block_contents": "raw",
        "bundle": "largest units_in units_out completion_tok",
        "cid": "cid codec digest",
        "container": "seed dek plaintext seed_wrap ct_hash sealed_sha256",
        "derivation": "key public",
        "eip712": "separator type type_hash struct_hash digest signature signer",
        "envelope": "fields",
        "escrow_evidence": "report_data measurement",
        "handover": "keys",
        "job_id": "job_id",
        "quotes": "cap fee amount provider treasury owner",
        "receipt": "",
        "result": "seed dek plaintext sealed_sha256",
        "scalars": "read",
        "sealed_box_keys": "plaintext",
        "signatures": "signer",
        "strict_json": "canonical",
        "tab": "read announced chain delegation_digest voucher_digest proves frames opened",
        "transactions": "sender raw hash",
        "units": "modality units_in units_out",
        "worked_order": (
            "owner box_key result_key_digest result_key_signature result_secret result_key envelope data_key seed_wrap "
            "ciphertext ct_hash c container task_cid job_id order_digest order_signature amount payment_digest "
            "auth_sig result_data_key sealed_result result_cid settle_digest settle_signature cost treasury refund"
        ),
    }.items()
}
# Further inputs of a large case.
_GIVEN_WITH_LENGTH: Final = frozenset({"dek", "header", "seed_wrap"})
_ABOUT: Final = frozenset({"name", "refused", "param"})


@attrs.frozen
class Asked:
    """A case, split into inputs and expected outputs."""

    file: str
    name: str
    given: Case
    follows: Case
    refused: str | None

    @classmethod
    def of(cls, file: str, case: Case) -> "Asked":
        outputs = OUTPUTS[file]
        if file in ("container", "result") and "plaintext_length" in case:
            outputs -= _GIVEN_WITH_LENGTH
        if file == "sealed_box_keys" and "secret" in case:
            outputs |= {"public"}
        given = {name: value for name, value in case.items() if name not in outputs | _ABOUT}
        # A null member was left out of the file because of its length.
        follows = {name: case[name] for name in outputs & case.keys() if case[name] is not None}
        return cls(file, case["name"], given, follows, case.get("refused"))

    @property
    def line(self) -> bytes:
        asked = {"file": self.file, "name": self.name, "case": self.given}
        return json.dumps(asked, ensure_ascii=True).encode("ascii") + b"\n"

    def wrong(self, answer: object) -> str | None:
        """Compare the program's output with the expected one. Describe the difference."""
        if not isinstance(answer, dict):
            return f"{shortened(answer)} is no object"
        refuses = answer.get("refused") not in (None, False)
        if self.refused is not None:
            return (
                None if refuses else f"accepted ({shortened(json.dumps(answer))}), and must be refused ({self.refused})"
            )
        if refuses:
            return f"refused ({shortened(answer['refused'])}), and must be accepted"
        for name, value in sorted(self.follows.items()):
            if answer.get(name) != value:
                return f"{name} is {shortened(answer.get(name))} and not {shortened(value)}"
        return None


def cases_of(folder: Path, file: str) -> list[Asked]:
    try:
        read = json.loads((folder / f"{file}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / file}.json: {error}", "--folder") from None
    return [Asked.of(file, case) for case in read["cases"]]


async def try_vectors(folder: Path, only: Sequence[str] | None, command: Sequence[str], report: Report) -> Report:
    """Run every case of every file in order, with a row per file."""
    files = sorted(OUTPUTS if only is None else only)
    if unknown := sorted(set(files) - OUTPUTS.keys()):
        raise Refused(f"{', '.join(unknown)}: no file of vectors (there are {', '.join(sorted(OUTPUTS))})", "--only")
    asked = {file: cases_of(folder, file) for file in files}
    try:
        process = await anyio.open_process(list(command), stderr=None)
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}") from None
    async with process:
        program = _Program(process)
        for file, cases in asked.items():
            await _file(program, file, cases, report)
        with suppress(ProcessLookupError):  # it has already exited
            process.terminate()
    return report


@attrs.define
class _Program:
    process: Process
    ended: str | None = None
    _lines: BufferedByteReceiveStream = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.process.stdout is None or self.process.stdin is None:
            raise AssertionError("opened with pipes")
        self._lines = BufferedByteReceiveStream(self.process.stdout)

    async def ask(self, asked: Asked) -> object:
        """Return the program's output. Return None once it has exited, with the reason in `ended`."""
        if self.ended is not None or self.process.stdin is None:
            return None
        try:
            with anyio.fail_after(_SECONDS):
                await self.process.stdin.send(asked.line)
                line = await self._lines.receive_until(b"\n", _LONGEST_LINE)
                answer: object = json.loads(line)
        except TimeoutError:
            self.ended = f"no answer to {asked.file}: {asked.name} within {_SECONDS:.0f} s"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead):
            self.ended = f"the program ended at {asked.file}: {asked.name}"
        except anyio.DelimiterNotFound:
            self.ended = f"the answer to {asked.file}: {asked.name} is a line above {_LONGEST_LINE >> 20} MiB"
        except ValueError:
            said = shortened(line.decode("utf-8", "replace"))
            self.ended = f"the answer to {asked.file}: {asked.name} is not JSON: {said}"
        else:
            return answer
        return None


async def _file(program: _Program, file: str, cases: Sequence[Asked], report: Report) -> None:
    wrong: list[str] = []
    skipped = 0
    for asked in cases:
        answer = await program.ask(asked)
        if program.ended is not None:
            wrong.append(program.ended)
            break
        if isinstance(answer, dict) and answer.get("skip") is True:
            skipped += 1
        elif (found := asked.wrong(answer)) is not None:
            wrong.append(f"{asked.name}: {found}")
    page = f"{_PAGE}{file}json"
    if skipped == len(cases):
        report.leave("vectors", f"{file}.json", "the program skips it", page)
        return
    expected = f"{len(cases) - skipped} cases" + (f" ({skipped} skipped)" if skipped else "")
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    report.judge("vectors", f"{file}.json", expected, wrong[0] + more if wrong else None, page)
