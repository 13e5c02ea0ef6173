import json
from pathlib import Path

from svc.cli.exit_codes import ExitCode
from tests.e2e.svc.conftest import Svc


def test_batch_from_plan_to_results_that_carry_their_custom_ids(svc: Svc, tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"custom_id": f"page {n}", "body": {"model": "demo/text-small", "input": f"text {n}"}}) + "\n"
        for n in range(1, 4)
    )
    file = tmp_path / "pages.jsonl"
    file.write_text(lines)
    (planned,) = json.loads(svc("batch", "plan", "-", "--json", stdin=lines).out)
    assert (planned["lines"], planned["allocation"][0]["lines"]) == (3, 3)
    made = svc("batch", "create", "-", "--window", "1h", "--metadata", "book=seals", stdin=lines)
    assert made.code == ExitCode.DONE, made.err
    batch = made.out.strip()
    waited = svc("batch", "wait", batch, "--every", "0.2", "--json")
    assert waited.code == ExitCode.DONE, waited.err
    seen = json.loads(waited.out)
    assert (seen["status"], seen["metadata"]) == ("completed", {"book": "seals", "svc-lines": "3"})
    out = tmp_path / "answers.jsonl"
    assert svc("batch", "results", batch, "--lines", str(file), "--out", str(out)).code == ExitCode.DONE
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["custom_id"] for each in results] == ["page 1", "page 2", "page 3"]
    assert [each["output"]["input"] for each in results] == ["text 1", "text 2", "text 3"]
    assert len({each["job_id"] for each in results}) == 1  # one bundle
    bundle = json.loads(svc("result", results[0]["job_id"], "--json").out)
    assert sum(each["cost"] for each in results) == bundle["cost"]
    assert f"no line of {batch} failed" in svc("batch", "run", str(file), "--again", batch).err
    assert out.stat().st_mode & 0o777 == 0o600
    assert svc("batch", "list").out.split("\t")[0] == batch
    refused = svc("batch", "cancel", batch, "--json")
    assert (refused.code, json.loads(refused.err)["error"]["code"]) == (ExitCode.REFUSED, "batch_not_cancellable")


def test_batch_that_nobody_takes_is_cancelled_while_it_goes_on(svc: Svc) -> None:
    body = {"model": "demo/text-small", "input": "x", "rate_in": 1, "rate_out": 1}  # below every ask
    batch = svc("batch", "create", "-", "--window", "1h", stdin=json.dumps({"body": body}) + "\n").out.strip()
    assert svc("batch", "results", batch).code == ExitCode.STILL_RUNNING
    for _ in range(2):
        cancelled = svc("batch", "cancel", batch, "--json")
        assert cancelled.code == ExitCode.DONE, cancelled.err
        assert json.loads(cancelled.out)["cancelling_at"] is not None
    assert json.loads(svc("batch", "status", batch, "--json").out)["status"] in {"cancelling", "cancelled"}


def test_wrong_line_is_named_before_anything_is_sent(svc: Svc) -> None:
    lines = '{"body": {"model": "demo/text-small", "input": "a"}}\n{"body": {"input": "b"}}\n'
    ended = svc("batch", "create", "-", stdin=lines)
    assert ended.code == ExitCode.USAGE
    assert "line 2: body.model is required" in ended.err
