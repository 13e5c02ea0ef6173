"""Run the vectors with programs that answer by line: one based on `common`, and some with one mistake."""

import json
import sys

import pytest

from common.checks import CheckResult
from common.refusal import Refused
from svc.cli.exit_codes import ExitCode
from tests.conformance.__main__ import conformance
from tests.conformance.vectors import try_vectors
from tests.conformance.verdicts import Report
from tests.vectors.vector_file import FOLDER


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def run(arguments: list[str]) -> object:
    """Return the exit status of the command."""
    with pytest.raises(SystemExit) as ended:
        conformance(arguments)
    return ended.value.code


_PROGRAM = """\
import json, sys
from common import canonical_json, strict_json
from common.quotes import derive_job_id
from common.refusal import Refused

def of_job(case):
    return {"job_id": "0x" + derive_job_id(bytes.fromhex(case["owner"][2:]), bytes.fromhex(case["c"][2:])).hex()}

def of_json(case):
    raw = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode("utf-8", "surrogatepass")
    value = strict_json.parse(raw)
    return {"canonical": canonical_json.canonical(value).decode()}

readers = {"job_id": of_job, "strict_json": of_json}
for line in sys.stdin.buffer:
    asked = json.loads(line)
    if asked["file"] not in readers:
        answer = {"skip": True}
    else:
        try:
            answer = readers[asked["file"]](asked["case"])
        except Refused as refused:
            answer = {"refused": str(refused)}
    CHANGE
    print(json.dumps(answer), flush=True)
"""


def program(change: str = "pass") -> list[str]:
    return [sys.executable, "-c", _PROGRAM.replace("CHANGE", change)]


async def test_right_program_is_right_and_what_it_skips_is_unknown() -> None:
    report = await try_vectors(FOLDER, ["job_id", "scalars", "strict_json"], program(), Report())
    results = {row.what: row.result for row in report.rows}
    assert results == {
        "vectors: job_id.json": CheckResult.RIGHT,
        "vectors: scalars.json": CheckResult.UNKNOWN,
        "vectors: strict_json.json": CheckResult.RIGHT,
    }


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (
            "answer = answer if 'refused' not in answer else {'canonical': ''}",
            'accepted ({"canonical": ""}), and must be',
        ),
        ("answer = {'refused': 'all'}", "and must be accepted"),
        ("answer = {**answer, 'canonical': 'x'}", "canonical is x and not"),
        ("answer = {}", "canonical is None and not"),
        ("answer = [1]", "is no object"),
        ("sys.exit()", "the program ended at strict_json"),
        ("print('hello', flush=True)", "is not JSON: hello"),
    ],
)
async def test_program_that_answers_wrong_is_found_with_its_case(change: str, came: str) -> None:
    report = await try_vectors(FOLDER, ["strict_json"], program(change), Report())
    [row] = report.wrong
    assert row.what == "vectors: strict_json.json"
    assert came in row.detail


async def test_missing_program_and_invalid_file_are_refused() -> None:
    with pytest.raises(Refused, match="no file of vectors"):
        await try_vectors(FOLDER, ["nothing"], program(), Report())
    with pytest.raises(Refused, match="/no/such"):
        await try_vectors(FOLDER, ["job_id"], ["/no/such/program"], Report())


def test_command_exits_0_when_right_and_9_when_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["vectors", "--folder", str(FOLDER), "--only", "job_id"]
    assert run([*asked, "--json", "--", *program()]) == ExitCode.DONE
    said = capsys.readouterr()
    assert [row["what"] for row in json.loads(said.out)] == ["vectors: job_id.json"]
    assert "1 right, 0 WRONG, 0 unknown" in said.err
    assert run([*asked, "--", *program("answer = {}")]) == ExitCode.UNHEALTHY
    assert capsys.readouterr().out.startswith("WRONG    vectors: job_id.json  ")
    assert run([*asked, "--", *program("answer = {'skip': True}")]) == ExitCode.UNHEALTHY  # nothing was checked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vectors", "--folder", str(FOLDER)], "name its command after --"),
        (["client"], "name its command after --"),
        (["client", "--", "/no/such/client"], "/no/such/client: No such file or directory"),
        (["provider", "--box-key", "0x12"], "--box-key must"),
        (["provider", "--", "/no/such/provider"], "/no/such/provider: No such file or directory"),
        (["coordinator", "--coordinator", "http://127.0.0.1:9", "--spend"], "--spend needs a wallet"),
    ],
)
def test_command_that_cannot_be_begun_says_why(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == ExitCode.USAGE
    assert said in capsys.readouterr().err
