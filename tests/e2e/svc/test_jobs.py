"""Jobs, batches, receipts and tabs in a complete market: the command line, also on a pseudo-terminal, and the SDK."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from svc.cli.exit_codes import ExitCode
from svc.client import Client
from svc.sync_client import SyncClient
from svcd.payload.picture_size import PictureSize, measure_picture
from tests.e2e.svc.conftest import Market, Svc
from tests.support.pseudo_terminal import PseudoTerminal, cells

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


def test_receipt_convinces_a_third_party_with_a_node(svc: Svc, market: Market, tmp_path: Path) -> None:
    described = json.loads((market.state / "devnet.json").read_text())
    node, file, book = ("--rpc-url", described["rpc_url"]), str(tmp_path / "job.json"), tmp_path / "book.json"
    book.write_text(json.dumps(described["addresses"]))
    bought = svc("run", "demo/text-small", "to be proved", "--window", "1h", "--final", "--json")
    assert bought.code == ExitCode.DONE, bought.err
    job = json.loads(bought.out)["job_id"]
    written = svc("receipt", job, *node)
    assert written.code == ExitCode.DONE, written.err
    Path(file).write_text(written.out)
    stranger = dict.fromkeys(
        (*market.environment, "SVC_RPC_URL")
    )  # without the buyer's settings, and without a coordinator
    stranger["SVC_BASE_URL"] = "http://127.0.0.1:1"
    checked = svc("receipt", "verify", file, *node, "--market", str(book), "--json", **stranger)
    assert checked.code == ExitCode.DONE, checked.err
    facts = {fact["name"]: fact["value"] for fact in json.loads(checked.out)}
    assert facts["job"] == job
    assert facts["ended"].startswith("JobSettled, 0x")
    hashes = [step["block"] for step in json.loads(written.out)["steps"]]
    given = [word for block in hashes for word in ("--block-hash", block)]
    assert svc("receipt", "verify", file, *given, **stranger).code == ExitCode.DONE
    foreign = svc("receipt", "verify", file, *given[2:], **stranger)
    assert foreign.code == ExitCode.UNREADABLE
    assert "not one of the given hashes" in foreign.err
    nobody = svc("receipt", "verify", file, **stranger)
    assert (nobody.code, nobody.out) == (ExitCode.USAGE, "")
    false = json.loads(written.out)
    false["end"]["cost"] = str(int(false["end"]["cost"]) + 1)
    Path(file).write_text(json.dumps(false))
    refused = svc("receipt", "verify", file, *node, "--json", **stranger)
    assert refused.code == ExitCode.UNREADABLE
    assert json.loads(refused.err)["error"]["param"] == "end.cost"


MODEL = "demo/text-small"


@pytest.fixture
def environment(market: Market, tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    return {**clean, **market.environment, "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


async def test_answers_of_a_tab_are_settled_once(environment: dict[str, str]) -> None:
    async with Client(environment=environment, on_first_use=lambda _: None) as client:
        async with client.tabs.open(MODEL) as tab:
            for number in range(3):
                stream = await tab.request({"input": f"tell me {number}"})
                words = [chunk async for chunk in stream]
                assert len(words) == 3
                assert (await stream.answer()).output == {"input": f"tell me {number}"}
        outcome = tab.outcome
        assert outcome is not None
        assert (outcome.requests, outcome.fault) == (3, None)
        assert outcome.charged == outcome.acknowledged > 0
        receipt = json.loads(await client.receipt(tab.id, transcript=True))
        assert receipt["end"]["completion_tok"] == str(outcome.charged)
        assert "tab" in receipt


def test_tab_without_await(environment: dict[str, str]) -> None:
    with SyncClient(environment=environment, on_first_use=lambda _: None) as client:
        with client.tabs.open(MODEL) as tab:
            stream = tab.request("two words")
            assert len(list(stream)) == 2
            assert stream.answer().output == {"input": "two words"}
        assert tab.outcome is not None
        assert tab.outcome.requests == 1


def test_chat_on_a_terminal_shows_costs_and_refund(environment: dict[str, str]) -> None:
    terminal = PseudoTerminal.start(
        [str(Path(sys.executable).with_name("svc")), "tab", "open", MODEL], environment, columns=80
    )
    terminal.wait_for(lambda shown: "> " in shown)
    terminal.type("why is the sky blue\n")
    terminal.wait_for(lambda shown: "so far]" in shown)
    terminal.type("and the sea\n")
    terminal.wait_for(lambda shown: shown.count("so far]") == 2)
    terminal.type("\x04")
    shown = terminal.end()
    assert shown.code == 0, shown.text
    assert "settled for 2 answers: paid" in shown.text.replace("\n", " ")
    assert "refunded" in shown.text
    assert "Traceback" not in shown.text
    assert all(cells(line) <= 80 for line in shown.lines if " " not in line or line.startswith("["))


def test_runs_share_an_open_tab(svc: Svc, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    first = svc("run", MODEL, "one", "--tab", "--json", **home)
    second = svc("run", MODEL, "two", "--tab", "--json", **home)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    answers = [json.loads(each.out) for each in (first, second)]
    assert [each["output"] for each in answers] == [{"input": "one"}, {"input": "two"}]
    assert answers[0]["job_id"] == answers[1]["job_id"]
    listed = json.loads(svc("tab", "list", "--json", **home).out)
    assert [each["job"] for each in listed["tabs"]] == [answers[0]["job_id"]]
    closed = svc("tab", "close", answers[0]["job_id"], "--json", **home)
    assert json.loads(closed.out)["requests"] == 2
    assert svc("tab", "close", answers[0]["job_id"], **home).code == 2


def test_conversation_from_a_pipe(svc: Svc, tmp_path: Path) -> None:
    ran = svc("tab", "open", MODEL, "--json", stdin="one two\nthree\n", XDG_CONFIG_HOME=str(tmp_path))
    assert ran.code == 0, ran.err
    *answers, outcome = [json.loads(line) for line in ran.out.splitlines()]
    assert [each["request"] for each in answers] == [1, 2]
    assert (outcome["requests"], outcome["fault"], outcome["status"]) == (2, None, "completed")
