"""A wallet's balance, and its jobs as they change."""

import json
from typing import Any

import pytest

from common.scalars import hex_of
from svc.cli.exit_codes import ExitCode
from tests.unit.svc.cli.market import FakeMarket, Svc
from tests.unit.svc.fake_chain import NODE, FakeNode
from tests.unit.svc.fake_coordinator import WALLET, Answer, Asked, Dropped, failing

Said = pytest.CaptureFixture[str]


def row(number: int, state: int, ended_because: int = 0) -> dict[str, Any]:
    return {
        **{"job_id": "0x" + f"{number:064x}", "owner": hex_of(WALLET.address), "c": "0x" + "cc" * 32},
        **{"model_id": "1", "sla_secs": "3600", "designated": "7", "rate_in": "1000000", "rate_out": "2000000"},
        **{"units_in": "4", "units_out": "10", "expires_at": "9", "provider_id": "7", "claimed_at": "0"},
        **{"completion_tok": "0", "posted_block": "5", "state": state, "ended_because": ended_because},
        **{"task_cid": "bafytask", "result_cid": None},
    }


@pytest.fixture(autouse=True)
def models(market: FakeMarket) -> None:
    market.coordinator.tell("GET /v1/models", Answer(200, {"data": [], "as_of_block": "5"}))


def test_balance_shows_what_open_and_claimed_jobs_may_take(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    def jobs(asked: Asked) -> Answer:
        rows = {"Open": [row(1, 0), row(2, 0)], "Claimed": [row(3, 1)]}[asked.query["state"]]
        return Answer(200, {"jobs": rows, "as_of_block": "5"})

    market.coordinator.tell("GET /evm/jobs", jobs)
    market.coordinator.tell(f"POST {NODE}/", FakeNode(balance=5_000_000))
    assert svc(f"balance --rpc-url {NODE} --json") == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    # Each job: a cap of 4 + 20, a 2.5 % fee that rounds down to 0, and the gas fee of 2,000.
    assert (told["balance"], told["authorised"], told["free"], told["held"]) == ("5000000", "4048", "4995952", "2024")
    assert svc(f"balance --rpc-url {NODE}") == ExitCode.DONE
    assert "balance\t5 Dev Dollar\n" in capsys.readouterr().out


def test_balance_without_a_node_names_the_variable(svc: Svc, capsys: Said) -> None:
    assert svc("balance") == ExitCode.USAGE
    assert "set SVC_RPC_URL or --rpc-url to a node" in capsys.readouterr().err


def test_piped_watch_prints_changes_and_survives_outages(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    looks = [[row(1, 0)], [row(2, 0), row(1, 0)], [row(2, 0), row(1, 2, 1)]]
    answers = [Answer(200, {"jobs": rows, "as_of_block": "5"}) for rows in looks]
    market.coordinator.tell("GET /evm/jobs", *answers[:2], *[Dropped()] * 4, answers[2], failing(403, "forbidden"))
    assert svc("jobs --watch --every 0.1") == ExitCode.REFUSED  # the command ends, because waiting would not help
    said = capsys.readouterr()
    seen = [line.split("\t") for line in said.out.splitlines()]
    assert [(each[0][-1], each[2]) for each in seen] == [("1", "queued"), ("2", "queued"), ("1", "completed")]
    assert said.err.count("retrying every 0.1 s") == 1


def test_watch_and_summary_are_two_ways_to_look(svc: Svc) -> None:
    assert svc("jobs --watch --summary") == ExitCode.USAGE
