import json
import re
from pathlib import Path

import pytest

from svc.cli.exit_codes import ExitCode
from svcd.payload.picture_size import PictureSize, measure_picture
from tests.e2e.svc.conftest import Svc

_MODEL = "demo/text-small"
_HOUR = ("--window", "1h")
_NOBODYS_RATES = (*_HOUR, "--rate-in", "1", "--rate-out", "1")  # below every ask, so the order stays open


def test_run_writes_the_output_alone_to_standard_output(svc: Svc, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear [seal],\n")
    ended = svc("run", _MODEL, "--file", str(tmp_path / "letter.txt"), "-p", "seed=7", *_HOUR)
    assert ended.code == ExitCode.DONE, ended.err
    assert json.loads(ended.out) == {"input": "Dear [seal],", "seed": 7}
    assert re.search("^(cost|paid) 0.002", ended.err, re.MULTILINE)  # before or after the settle's block


def test_image_is_bought_with_a_text_alone(svc: Svc, tmp_path: Path) -> None:
    ended = svc("run", "demo/image-small", "a cat", "--window", "1m", "--out-dir", str(tmp_path))
    assert ended.code == ExitCode.DONE, ended.err
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".png"
    assert measure_picture(file.read_bytes()) == PictureSize(64, 64)


def test_embeddings_are_bought_with_a_text_alone(svc: Svc) -> None:
    ended = svc("run", "demo/embed-small", "a cat", "--window", "1m", "-p", "dimensions=3")
    assert ended.code == ExitCode.DONE, ended.err
    (row,) = json.loads(ended.out)["data"]
    assert len(row["embedding"]) == 3


def test_open_job_under_json_says_what_it_cost(svc: Svc) -> None:
    rates = ("--rate-in", "100000", "--rate-out", "200000")
    ended = svc("run", _MODEL, *rates, *_HOUR, "--json", stdin='{"input": "hi", "max_output_tokens": 10}')
    assert ended.code == ExitCode.DONE, ended.err
    answer = json.loads(ended.out)
    assert (answer["status"], answer["output"]["input"]) == ("completed", "hi")
    assert answer["authorised"] == answer["cost"] + answer["returned"]
    assert answer["cost"] == sum(answer["cost_parts"].values())
    assert answer["cost_parts"].keys() == {"provider", "fee", "gas_fee"}


def test_job_step_by_step_from_another_process_each_time(svc: Svc, tmp_path: Path) -> None:
    quoted = json.loads(svc("quote", _MODEL, "hello", "--provider", "1", *_HOUR, "--json").out)
    assert quoted["candidates"][0]["provider_id"] == 1
    most = str(quoted["quote"]["amount"])
    submitted = svc("submit", _MODEL, "hello", "--provider", "1", *_HOUR, "--max-amount", most)
    assert submitted.code == ExitCode.DONE, submitted.err
    job = submitted.out.strip()
    waited = svc("wait", job, "--json")
    assert (waited.code, json.loads(waited.out)["status"]) == (ExitCode.DONE, "completed")
    facts = dict(line.split("\t") for line in svc("status", job).out.splitlines())
    assert (facts["status"], facts["provider"], facts["model"]) == ("completed", "1", _MODEL)
    assert json.loads(svc("result", job).out) == {"input": "hello"}
    whole = tmp_path / "whole.json"
    saved = json.loads(svc("result", job, "--whole", str(whole), "--json").out)
    assert saved == {"job_id": job, "file": str(whole), "bytes": whole.stat().st_size}
    assert json.loads(whole.read_text())["job_id"] == job
    assert svc("result", job, "--out", str(tmp_path / "out")).out == ""
    assert json.loads((tmp_path / "out").read_text()) == {"input": "hello"}
    assert job in [row.split("\t")[0] for row in svc("jobs").out.splitlines()]
    assert int(json.loads(svc("jobs", "--summary", "--json").out)["completed"]) >= 1


def test_unclaimed_job_is_running_until_cancelled(svc: Svc) -> None:
    job = svc("submit", _MODEL, "hello", *_NOBODYS_RATES).out.strip()
    assert svc("wait", job, "--timeout", "0").code == ExitCode.STILL_RUNNING
    assert svc("result", job).code == ExitCode.STILL_RUNNING
    assert svc("cancel", job).code == ExitCode.DONE
    ended = svc("wait", job, "--json")
    assert (ended.code, json.loads(ended.out)["status"]) == (ExitCode.NO_RESULT, "cancelled")
    assert svc("result", job).code == ExitCode.NO_RESULT


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "said"),
    [
        (("run", _MODEL, "hi"), {"SVC_WALLET_KEY": None}, ExitCode.NO_KEY, "create a key file with svc keygen"),
        (("run", _MODEL, "hi"), {"SVC_WALLET_KEY": "0x12"}, ExitCode.NO_KEY, "must be a valid private key"),
        (("run", "no/such", "hi"), {}, ExitCode.REFUSED, "svc models"),
        (("run", _MODEL, "hi", "-p", "stream=true"), {}, ExitCode.USAGE, "stream"),
        (("run", _MODEL, "hi", "-p", "width=512"), {}, ExitCode.USAGE, "returns text, not image: remove width"),
        (
            ("run", _MODEL, "hi", "--embeddings"),
            {},
            ExitCode.USAGE,
            "does not make embeddings: its endpoint is /v1/responses",
        ),
        (("run", _MODEL, "hi", "--max-amount", "5"), {}, ExitCode.REFUSED, "above the ceiling of 0.000005 Dev Dollar"),
        (
            ("quote", _MODEL, "hi", "--max-amount", "5"),
            {},
            ExitCode.REFUSED,
            "above the ceiling of 0.000005 Dev Dollar",
        ),
        (("run", _MODEL, "hi", "--out", "/nowhere/at/all"), {}, ExitCode.USAGE, "No such file"),
        (("run", _MODEL, "hi", "--coordinator", "localhost"), {}, ExitCode.USAGE, "http://"),
        (
            ("run", _MODEL, "hi", "--window", "45s"),
            {},
            ExitCode.USAGE,
            "the network does not allow a window of 45s: use 1m",
        ),
        (("run", _MODEL, "hi", "--window", "45s"), {"SVC_RPC_URL": None}, ExitCode.USAGE, "use 1m"),
        (("submit", _MODEL, "hi", *_NOBODYS_RATES, "--escrow-key", "00" * 32), {}, ExitCode.REFUSED, "pinned"),
    ],
)
def test_impossible_order_exits_with_code_and_remedy(
    svc: Svc, arguments: tuple[str, ...], variables: dict[str, str | None], code: ExitCode, said: str
) -> None:
    ended = svc(*arguments, **variables)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_json_failure_includes_the_request_id(svc: Svc) -> None:
    ended = svc("status", "0x" + "00" * 32, "--json")
    assert (ended.code, ended.out) == (ExitCode.REFUSED, "")
    error = json.loads(ended.err)["error"]
    assert (error["type"], error["retryable"]) == ("not_found", False)
    assert error["request_id"]
