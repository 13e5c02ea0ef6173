import json

import pytest

from svc.cli.exit_codes import ExitCode
from tests.e2e.svc.conftest import Svc


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("models",), ("id", "demo/text-small")),
        (("asks", "--model", "demo/text-small"), ("provider_id", 1)),
        (("asks", "--floors"), ("rate_in", 100_000)),
        (("providers",), ("provider_id", 1)),
    ],
)
def test_listing_is_json_for_scripts_and_lines_for_pipes(
    svc: Svc, arguments: tuple[str, ...], first: tuple[str, object]
) -> None:
    listed = json.loads(svc(*arguments, "--json").out)
    name, value = first
    assert listed[0][name] == value
    assert len(svc(*arguments).out.splitlines()) == len(listed)


def test_escrow_key_is_shown_with_its_evidence(svc: Svc) -> None:
    shown = json.loads(svc("escrow", "--json").out)
    assert shown["verified"] is True
    assert shown["evidence"]["type"] == "static-coordinator-v1"
    pinned = svc("escrow", "--escrow-key", "00" * 32)
    assert (pinned.code, pinned.out) == (ExitCode.REFUSED, "")


def test_doctor_finds_a_market_that_is_well(svc: Svc) -> None:
    ended = svc("doctor", "--json")
    assert ended.code == ExitCode.DONE, ended.out
    results = {row["what"]: row["result"] for row in json.loads(ended.out)}
    for check in ("coordinator", "clock", "session", "signing", "escrow", "domains", "balance"):
        assert results[check] == "right", results


def test_doctor_says_what_is_wrong_and_what_to_do(svc: Svc) -> None:
    poor = "0x" + "17" * 32
    ended = svc("doctor", "--json", "--gateway", "http://127.0.0.1:1", SVC_WALLET_KEY=poor)
    assert ended.code == ExitCode.UNHEALTHY
    wrong = {row["what"]: row["remedy"] for row in json.loads(ended.out) if row["result"] == "WRONG"}
    assert wrong.keys() == {"gateway", "balance"}
    assert "SVC_PIN_GATEWAY" in wrong["gateway"]
    assert "send some to 0x" in wrong["balance"]


def test_doctor_reports_only_the_silent_coordinator(svc: Svc) -> None:
    ended = svc("doctor", "--json", SVC_BASE_URL="http://127.0.0.1:1")
    assert ended.code == ExitCode.UNHEALTHY
    assert [row["what"] for row in json.loads(ended.out)] == ["coordinator"]
