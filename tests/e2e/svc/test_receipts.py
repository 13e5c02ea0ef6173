"""`svc receipt` and `svc receipt verify` by a buyer and by a third party."""

import json
from pathlib import Path

from svc.cli.exit_codes import ExitCode
from tests.e2e.conftest import Market
from tests.e2e.svc.conftest import Svc


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
