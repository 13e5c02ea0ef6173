"""One job on the command line: its output, where the money is, and the next step after every early end."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from svc.cli.commands import orders
from svc.cli.exit_codes import ExitCode
from tests.unit.svc.cli.market import FakeMarket, Svc
from tests.unit.svc.fake_coordinator import Answer, Dropped, failing, job, progress, step

RUN = "run demo/text hello --window 1h --gateway http://gateway"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
CHAT = {"choices": [{"message": {"role": "assistant", "content": "Because of Rayleigh."}, "finish_reason": "stop"}]}
IMAGES = {"data": [{"b64_json": base64.b64encode(PNG).decode()}, {"b64_json": base64.b64encode(PNG[:-1]).decode()}]}
Said = pytest.CaptureFixture[str]


def test_chat_is_shown_as_its_text_and_what_it_cost_beside_it(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.output = CHAT
    assert svc(RUN) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out == "Because of Rayleigh.\n"
    assert "paid 0.00201 Dev Dollar" in said.err


@pytest.mark.parametrize(("flag", "read"), [("--raw", CHAT), ("--json", CHAT)])
def test_raw_and_json_give_the_models_own_answer(
    market: FakeMarket, svc: Svc, capsys: Said, flag: str, read: object
) -> None:
    market.output = CHAT
    assert svc(f"{RUN} {flag}") == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    assert (shown if flag == "--raw" else shown["output"]) == read


def test_images_become_files_whose_names_are_shown(market: FakeMarket, svc: Svc, capsys: Said, tmp_path: Path) -> None:
    market.output = IMAGES
    assert svc(f"{RUN} --out-dir {tmp_path}") == ExitCode.DONE
    names = capsys.readouterr().out.splitlines()
    assert names == [str(tmp_path / f"job-{market.job_id[2:10]}-{number}.png") for number in (1, 2)]
    assert [Path(name).read_bytes() for name in names] == [PNG, PNG[:-1]]


def test_image_goes_into_the_file_that_is_named(market: FakeMarket, svc: Svc, tmp_path: Path) -> None:
    market.output = IMAGES
    assert svc(f"{RUN} --out {tmp_path}/sky.png") == ExitCode.DONE
    assert [(tmp_path / name).read_bytes() for name in ("sky.png", "sky-2.png")] == [PNG, PNG[:-1]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('--gateway ""', "no gateway is set"),
        ("--out-dir /nowhere/at/all", "/nowhere/at/all: No such file or directory; create the folder first"),
        ("--out /nowhere/at/all", "No such file"),
        (
            "--window 7d",
            "--window 7d is not supported: use 1h (async), 24h (batch), <n>h, <n>m or <n>s; this market has 1h, 24h",
        ),
    ],
)
def test_unreadable_outputs_are_refused_before_signing(
    market: FakeMarket, svc: Svc, capsys: Said, more: str, said: str
) -> None:
    assert svc(f"{RUN} {more}") == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert market.coordinator.to("POST /v1/jobs") == []


def test_unknown_window_lists_those_with_a_price(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.coordinator.tell("POST /v1/jobs", Answer(402, {"candidates": []}))
    assert svc("run demo/text hello --window 2h") == ExitCode.TRY_AGAIN
    assert "no provider is live for this model and window of 2h; windows with asks: 1h, 24h" in capsys.readouterr().err


def test_open_offer_for_an_unpriced_window_warns(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    assert svc("quote demo/text hello --window 2h --rate-in 1 --provider 7") == ExitCode.DONE
    assert (
        "no provider has a price for 2h, and the network may reject this window; windows with a price: 1h, 24h"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("ended_because", "status", "said"),
    [
        (3, "failed", "the provider could not run the job; fully refunded"),
        (4, "failed", "the provider missed the deadline; fully refunded"),
        (2, "cancelled", "no provider had claimed the job; nothing was paid"),
        (5, "cancelled", "no provider claimed the job in time; nothing was paid"),
    ],
)
def test_job_without_a_result_says_where_the_money_is(
    market: FakeMarket, svc: Svc, capsys: Said, *, ended_because: int, status: str, said: str
) -> None:
    market.end(status, ended_because=ended_because, state=3)
    assert svc(RUN) == ExitCode.NO_RESULT
    assert said in capsys.readouterr().err
    assert svc(f"wait {market.job_id}") == ExitCode.NO_RESULT
    assert said in capsys.readouterr().out


def test_timed_out_wait_says_how_to_resume(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.end("queued")
    assert svc(f"{RUN} --timeout 0") == ExitCode.STILL_RUNNING
    lines = capsys.readouterr().err.splitlines()
    assert "     the job continues, and its result is kept for you:" in lines
    assert f"  svc result {market.job_id} --gateway http://gateway" in lines
    assert len(f"  svc result {market.job_id}") <= 80  # fits on one line, to be copied as a whole


def test_interruption_says_that_the_job_continues(
    market: FakeMarket, svc: Svc, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(orders, "_wait_for_answer", interrupted)
    assert svc(RUN) == ExitCode.INTERRUPTED
    said = capsys.readouterr().err
    assert "svc: interrupted" in said
    assert f"  svc wait {market.job_id}" in said


def test_unfetched_result_can_be_read_again(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.ended["result_cid"] = "bafyother"
    market.coordinator.tell("GET http://gateway/ipfs/bafyother", failing(403, "forbidden"))
    assert svc(RUN) == ExitCode.UNREADABLE
    said = capsys.readouterr().err
    assert "job completed: paid 0.00201 Dev Dollar" in said
    assert f"  svc result {market.job_id} --gateway http://gateway" in said


def test_unwritten_answer_can_be_read_again(market: FakeMarket, svc: Svc, capsys: Said, tmp_path: Path) -> None:
    market.output = IMAGES

    def blocked(asked: Any) -> Answer:
        answer = market._order(asked)
        if market.job_id:
            (tmp_path / f"job-{market.job_id[2:10]}-1.png").mkdir(exist_ok=True)
        return answer

    market.coordinator.tell("POST /v1/jobs", blocked)
    assert svc(f"{RUN} --out-dir {tmp_path}") == ExitCode.UNREADABLE
    said = capsys.readouterr().err
    assert "cannot write the answer" in said
    assert f"  svc result {market.job_id}" in said


def test_refused_order_is_neither_posted_nor_owed(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.coordinator.tell(
        "POST /v1/jobs", market._order, market._order, failing(400, "invalid_request_error", "InsufficientBalance")
    )
    assert svc(RUN) == ExitCode.REFUSED
    assert "nothing was posted, and nothing is owed" in capsys.readouterr().err


def test_order_without_an_answer_is_to_be_looked_up(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.coordinator.tell("POST /v1/jobs", market._order, market._order, Dropped())
    assert svc(f"{RUN} --json") == ExitCode.STILL_RUNNING
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert error["next"]["where"].startswith("the job may have been posted")
    assert error["next"]["commands"][0].startswith("svc status 0x")


@pytest.mark.parametrize(
    ("status", "ended", "code", "became"),
    [
        ("cancelled", {"state": 3, "ended_because": 2}, ExitCode.DONE, "cancelled: no provider had claimed the job"),
        ("cancelled", {"state": 3, "ended_because": 5}, ExitCode.DONE, "expired: no provider claimed the job"),
        ("failed", {"state": 3, "ended_because": 4}, ExitCode.DONE, "reclaim: the provider missed"),
        (
            "completed",
            {"state": 2, "ended_because": 1, "completion_tok": "3", "result_cid": "bafyr"},
            ExitCode.REFUSED,
            "completed: paid 0.00201 Dev Dollar (provider 0.00001, fees 0.002)",
        ),
    ],
)
def test_cancel_reports_the_jobs_end(
    market: FakeMarket, svc: Svc, capsys: Said, *, status: str, ended: dict[str, Any], code: ExitCode, became: str
) -> None:
    id_ = "0x" + "07" * 32
    market.coordinator.tell(f"POST /v1/jobs/{id_}/cancel", Answer(200, {"job_id": id_, "tx_hash": "0x" + "cc" * 32}))
    market.coordinator.tell(
        f"GET /v1/jobs/{id_}", Answer(200, job(id_, "queued")), Answer(200, job(id_, status, **ended))
    )
    assert svc(f"cancel {id_}") == code
    facts = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert facts["outcome"].startswith(became)


WHY = {
    "job_id": "0x" + "ab" * 32,
    "state": 0,
    "verdict": "price",
    "said": "of 1 providers that poll for the job's model: 1 asks more than the order pays",
    "providers": [
        {
            "provider_id": "7",
            "takes": False,
            "reasons": [
                {"code": "price", "said": "it asks 9 in and 9 out; the order pays 1 in and 1 out", "remedy": "-"}
            ],
        }
    ],
    "would_help": [
        {"change": "rates", "value": {"rate_in": "9", "rate_out": "9"}, "providers": "1"},
        {"change": "window", "value": {"sla_secs": "3600"}, "providers": "2"},
        {"change": "something newer", "value": {}, "providers": "1"},
    ],
    "as_of_block": "5",
}


def test_why_shows_obstacles_and_remedies(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    market.coordinator.tell(f"GET /v1/jobs/{WHY['job_id']}/why", Answer(200, WHY))
    assert svc(f"why {WHY['job_id']}") == ExitCode.DONE
    assert capsys.readouterr().out.splitlines() == [
        WHY["said"],
        "7\tno\tit asks 9 in and 9 out; the order pays 1 in and 1 out",
        "would help: rates of 9 in and 9 out (1 provider could then accept the job)",
        "would help: a window of 1h (2 providers could then accept the job)",
        "would help: something newer (1 provider could then accept the job)",
    ]
    assert svc(f"why {WHY['job_id']} --json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["providers"][0]["reasons"][0]["code"] == "price"


def test_check_lists_failures_and_posts_nothing(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    failure = {"message": "signature does not recover to owner", "param": "signature", "code": "bad", "remedy": "sign"}
    told = {"ok": False, "checked": "order", "failures": [failure], "quote": None, "candidates": []}
    market.coordinator.tell("POST /v1/jobs/check", Answer(200, told))
    assert svc("submit demo/text hello --window 1h --check") == ExitCode.REFUSED
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "bad: signature does not recover to owner",
        "  sign",
        "live now\tnone with free capacity at these rates",
    ]
    [asked] = market.coordinator.to("POST /v1/jobs/check")
    assert "auth_sig" not in asked.body
    assert "signature" in asked.body
    assert market.payments == 0
    market.coordinator.tell("POST /v1/jobs/check", Answer(200, {**told, "ok": True, "failures": []}))
    assert svc("submit demo/text hello --window 1h --check") == ExitCode.DONE
    assert "nothing was posted, and nothing is owed" in capsys.readouterr().err


def test_claimed_job_counts_down_and_shows_the_refund(market: FakeMarket, svc: Svc, capsys: Said) -> None:
    id_ = "0x" + "cd" * 32

    def told(status: str, **details: Any) -> Answer:
        one = job(id_, status)
        return Answer(200, {**one, "svc": {**one["svc"], "amount": "2014000", **details}})

    far = {"state": 1, "reclaimable_at": "9999999999", "reclaimable_block": "1845"}
    market.coordinator.tell(f"GET /v1/jobs/{id_}", told("in_progress", **far))
    assert svc(f"status {id_}") == ExitCode.DONE
    shown = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert shown["to be settled"].startswith("in ")
    assert "(2286-11-20 17:46:39Z); then anyone may reclaim it, and the payment is refunded" in shown["to be settled"]
    assert shown["reclaimable"] == "from about block 1845"
    market.coordinator.tell(f"GET /v1/jobs/{id_}", told("in_progress", state=1, reclaimable_at="5"))
    assert svc(f"status {id_}") == ExitCode.DONE
    assert "to be settled\tdeadline passed (1970-01-01 00:00:05Z)" in capsys.readouterr().out
    market.coordinator.tell(f"GET /v1/jobs/{id_}", told("failed", state=3, ended_because=4, ended_at="1800000000"))
    assert svc(f"wait {id_}") == ExitCode.NO_RESULT
    shown = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert shown["ended"] == "2027-01-15 08:00:00Z"
    assert shown["money"] == "the provider missed the deadline; fully refunded (2.014 Dev Dollar)"


# --- before the blocks ----------------------------------------------------------------------------------------


@pytest.fixture
def early(market: FakeMarket) -> FakeMarket:
    market.early = True
    return market


def test_provisional_answer_names_the_command_for_its_end(early: FakeMarket, svc: Svc, capsys: Said) -> None:
    assert svc(RUN) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.out == "out\n"
    assert "cost 0.00201" in said.err
    assert "not final yet (settle stored by the coordinator)" in said.err
    again = f"svc wait {early.job_id} --result bafyr --gateway http://gateway"
    assert f"  {again}" in said.err.splitlines()
    assert svc(again.removeprefix("svc ")) == ExitCode.DONE


def test_json_says_what_an_answer_rests_on(early: FakeMarket, svc: Svc, capsys: Said) -> None:
    # The order has five units in. This chain reports a job with four.
    for flag, provisional, rests_on, paid in (("", True, "stored", 2011), ("--final", False, "block", 2010)):
        assert svc(f"{RUN} --json {flag}") == ExitCode.DONE
        shown = json.loads(capsys.readouterr().out)
        assert (shown["provisional"], shown["rests_on"], shown["result_cid"]) == (provisional, rests_on, "bafyr")
        assert (shown["output"], shown["status"], shown["cost"]) == ("out", "completed", paid)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (("failed", {"ended_because": 4, "state": 3}), "the provisional result was not confirmed: job"),
        (
            ("completed", {"completion_tok": "3", "state": 2, "ended_because": 1, "result_cid": "bafyo"}),
            "another result",
        ),
    ],
)
def test_withdrawn_answer_is_reported_by_wait(
    early: FakeMarket, svc: Svc, capsys: Said, *, end: tuple[str, dict[str, Any]], said: str
) -> None:
    early.end(end[0], **end[1])
    assert svc(RUN) == ExitCode.DONE
    assert svc(f"wait {early.job_id} --result bafyr") == ExitCode.NO_RESULT
    assert said in capsys.readouterr().err


def test_stored_then_refused_order_is_reported_unposted(early: FakeMarket, svc: Svc, capsys: Said) -> None:
    id_ = "0x" + "ab" * 32
    refused = progress(id_, "refused", step("post", "refused", reason="InsufficientBalance"), provisional=False)
    early.coordinator.tell(f"GET /v1/jobs/{id_}/progress", Answer(200, refused))
    for command in ("wait", "result"):
        assert svc(f"{command} {id_}") == ExitCode.REFUSED
        said = capsys.readouterr().err
        assert f"job {id_} was not posted: InsufficientBalance; nothing was collected" in said
        assert "svc balance" in said


def test_order_that_no_block_has_yet_is_shown_by_its_steps(early: FakeMarket, svc: Svc, capsys: Said) -> None:
    assert svc("submit demo/text hello --window 1h") == ExitCode.DONE
    said = capsys.readouterr()
    assert "stored by the coordinator, which sends it to the chain" in said.err
    assert said.out.strip() == early.job_id
    early.coordinator.tell(f"GET /v1/jobs/{early.job_id}", failing(404, "not_found"))
    assert svc(f"status {early.job_id}") == ExitCode.DONE
    shown = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert shown["status"] == "completed, provisional"
    assert (shown["post"], shown["claim"], shown["settle"]) == ("stored", "stored", "stored: bafyr")
    assert svc(f"result {early.job_id}") == ExitCode.STILL_RUNNING
    assert svc("status 0x" + "cd" * 32) == ExitCode.REFUSED
