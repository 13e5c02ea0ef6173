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
