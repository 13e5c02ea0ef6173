"""Batches on the command line: offers for lines without rates, and a batch that is run by one command."""

import json
from pathlib import Path

import pytest

from svc.cli.exit_codes import ExitCode
from tests.unit.svc.cli.market import FakeMarket, Svc
from tests.unit.svc.fake_coordinator import Answer, Asked, Dropped, failing, quoting

Said = pytest.CaptureFixture[str]
ASKS = [
    {"provider_id": str(provider), "model_id": "1", "sla": str(sla), "rate_in": str(rate), "rate_out": str(2 * rate)}
    for provider, sla, rate in ((7, 3600, 30), (8, 3600, 20), (9, 86_400, 10))
]
SESSION = {"token": "t", "expires_at": 9_999_999_999}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [{"body": {"model": "demo/text", "input": f"{n}"}} for n in (1, 2)]
    lines.append({"body": {"model": "demo/text", "input": "3", "rate_in": "5", "rate_out": "5"}})
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(autouse=True)
def batches(market: FakeMarket) -> None:
    """A market that plans two lines of one model, and accepts every batch."""
    tell = market.coordinator.tell
    tell("GET /auth/nonce", Answer(200, {"nonce": "00" * 16, "expires_at": 9_999_999_999, "chain_id": 31337}))
    tell("POST /auth/session", Answer(200, SESSION))
    tell("GET /evm/asks", Answer(200, {"asks": ASKS, "as_of_block": "5"}))
    tell("POST /v1/jobs", quoting())
    tell("GET /v1/models", Answer(200, {"data": [], "as_of_block": "5"}))
    plan = {"plan": [{"model_id": "1", "lines": "2", "allocation": []}]}
    tell("POST /v1/batches", Answer(402, plan))


def posted_rates(market: FakeMarket) -> list[tuple[str, str, int]]:
    (upload,) = market.coordinator.to("POST /v1/files")
    lines = [json.loads(line) for line in upload.body.splitlines() if line.startswith(b'{"c"')]
    return [(line["rate_in"], line["rate_out"], int(line["designated"])) for line in lines]


def test_short_plan_says_what_to_do(market: FakeMarket, svc: Svc, capsys: Said, file: Path) -> None:
    assert svc(f"batch create {file} -w 1h") == ExitCode.TRY_AGAIN
    said = capsys.readouterr().err
    assert "capacity for 0 of 2 lines" in said
    assert "--market" in said
    assert "nothing was posted" in said
    assert svc(f"batch plan {file} -w 1h") == ExitCode.TRY_AGAIN
    assert "--market" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "rates"), [("--market --provider 7", ("30", "60", 7)), ("--rate-in 3 --provider 7", ("3", "0", 7))]
)
def test_offer_is_made_for_the_lines_without_rates_alone(
    market: FakeMarket, svc: Svc, file: Path, *, options: str, rates: tuple[str, str, int]
) -> None:
    market.coordinator.tell("POST /v1/files", failing(413, "invalid_request_error"))
    assert svc(f"batch create {file} -w 1h {options}") == ExitCode.REFUSED
    assert posted_rates(market) == [rates, rates, ("5", "5", 7)]


def test_market_price_without_an_ask_is_refused(svc: Svc, capsys: Said, file: Path) -> None:
    assert svc(f"batch create {file} -w 24h --market --provider 7") == ExitCode.TRY_AGAIN
    assert "none of the providers 7 has an ask for demo/text in a window of 24h" in capsys.readouterr().err


def test_market_and_rates_are_two_offers(svc: Svc, file: Path) -> None:
    assert svc(f"batch create {file} --market --rate-in 1") == ExitCode.USAGE


def test_run_without_a_gateway_is_refused_before_signing(
    market: FakeMarket, svc: Svc, capsys: Said, file: Path
) -> None:
    assert svc(f'batch run {file} --gateway ""') == ExitCode.USAGE
    assert "no gateway is set" in capsys.readouterr().err
    assert market.coordinator.asked == []


def test_run_that_ends_early_says_how_to_go_on(market: FakeMarket, svc: Svc, capsys: Said, file: Path) -> None:
    counts = {"total": 3, "completed": 0, "failed": 0}
    made = {
        **{"id": "batch_1", "object": "batch", "endpoint": "/v1/responses", "errors": None, "metadata": {}},
        **{"input_file_id": "file_1", "completion_window": "1h", "status": "in_progress", "created_at": 1},
        **{"output_file_id": None, "error_file_id": None, "in_progress_at": 1, "expires_at": 9_999_999_999},
        **{"finalizing_at": None, "completed_at": None, "failed_at": None, "expired_at": None},
        **{"cancelling_at": None, "cancelled_at": None, "request_counts": counts},
        "svc": {"owner": "0x" + "11" * 20, "sla": "1h"},
    }
    stored = {
        "id": "file_1",
        "object": "file",
        "bytes": 3,
        "created_at": 1,
        "filename": "b",
        "purpose": "batch",
        "expires_at": 9,
        "status": "processed",
    }

    def create(asked: Asked) -> Answer:
        return Answer(200, made)

    market.coordinator.tell("POST /v1/files", Answer(200, stored | {"svc": {"cid": "bafyfile", "lines": 3}}))
    market.coordinator.tell("GET /v1/batches/batch_1", Answer(200, made))
    line = f"batch run {file} -w 1h --rate-in 3 --provider 7 --timeout 0"
    market.coordinator.tell("POST /v1/batches", create)
    assert svc(line) == ExitCode.STILL_RUNNING
    said = capsys.readouterr().err
    assert "the batch continues" in said
    assert "  svc batch results batch_1" in said
    market.coordinator.tell("POST /v1/batches", Dropped())
    market.coordinator.tell("GET /v1/batches", Dropped())
    assert svc(line) == ExitCode.STILL_RUNNING
    assert "the batch may have been created; check with:\n  svc batch list" in capsys.readouterr().err


def test_again_orders_only_the_lines_that_failed(
    market: FakeMarket, svc: Svc, capsys: Said, file: Path, tmp_path: Path
) -> None:
    def error(line: int, code: str) -> dict[str, object]:
        return {
            **{"id": f"batch_req_old_{line}", "custom_id": None, "response": None},
            **{"error": {"code": code, "message": "m"}, "svc": {"job_id": None, "line": line}},
        }

    tell = market.coordinator.tell
    counts = {"total": 3, "completed": 0, "failed": 3}
    ended = {
        **{
            "id": "old",
            "object": "batch",
            "endpoint": "/v1/responses",
            "errors": None,
            "metadata": {"svc-lines": "1 2"},
        },
        **{"input_file_id": "f", "completion_window": "1h", "status": "completed", "created_at": 1, "expires_at": 2},
        **{"output_file_id": None, "error_file_id": "err", "request_counts": counts, "svc": {"sla": "1h"}},
    }
    tell("GET /v1/batches/old", Answer(200, ended))
    failed = [error(1, "cancelled"), error(2, "provider_fail")]
    tell("GET /v1/files/err/content", Answer(200, "\n".join(map(json.dumps, failed)).encode()))
    tell("POST /v1/files", failing(413, "invalid_request_error"))
    assert svc(f"batch run {file} -w 1h --rate-in 3 --provider 7 --again old") == ExitCode.REFUSED
    assert posted_rates(market) == [("3", "0", 7), ("3", "0", 7), ("5", "5", 7)]
    tell("GET /v1/files/err/content", Answer(200, json.dumps(failed[1]).encode()))
    assert svc(f"batch run {file} -w 1h --rate-in 3 --provider 7 --again old") == ExitCode.USAGE
    assert "old has 2 lines, but the file has 3" in capsys.readouterr().err
