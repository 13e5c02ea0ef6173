"""The command line in a market: its offers, and what it believes without proof from the coordinator when a chain is
reachable."""

import json
from pathlib import Path

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


_MODEL = "demo/text-small"


def test_first_use_is_reported_once_and_kept(svc: Svc, tmp_path: Path) -> None:
    known = str(tmp_path / "svc" / "known.json")
    alone = {"SVC_ADDRESSES_FILE": None, "SVC_RPC_URL": None, "SVC_KNOWN_MARKETS": known}
    first, second = (svc("quote", _MODEL, "hello", "--window", "1h", **alone) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert "warning: first use of http://127.0.0.1" in first.err
    assert "remembered the key of provider" in first.err
    assert "remembered" not in second.err
    shown = svc("market", "show", **alone)
    assert "key of provider" in shown.out
    assert "reported now" not in shown.out
    assert svc("market", "forget", **alone).code == 0
    assert "known\tno" in svc("market", "show", **alone).out


def test_change_is_refused_with_the_command_that_accepts_it(svc: Svc, tmp_path: Path) -> None:
    known = tmp_path / "svc" / "known.json"
    alone = {"SVC_ADDRESSES_FILE": None, "SVC_RPC_URL": None, "SVC_KNOWN_MARKETS": str(known)}
    assert svc("quote", _MODEL, "hello", "--window", "1h", **alone).code == 0
    document = json.loads(known.read_text())
    (entry,) = document["markets"].values()
    (provider,) = entry["boxKeys"]
    entry["boxKeys"][provider] = "66" * 31 + "06"
    known.write_text(json.dumps(document))
    refused = svc("quote", _MODEL, "hello", "--window", "1h", **alone)
    assert refused.code == 3
    command = refused.err[refused.err.index("svc market accept") :].splitlines()[0].split()
    assert svc(*command[1:], **alone).code == 0
    assert svc("quote", _MODEL, "hello", "--window", "1h", **alone).code == 0
    entry["deployment"]["jobRegistry"] = "0x" + "66" * 20
    known.write_text(json.dumps(document))
    refused = svc("quote", _MODEL, "hello", "--window", "1h", **alone)
    assert refused.code == 3
    assert f"job registry: expected 0x{'66' * 20}, reported 0x" in refused.err
    command = refused.err[refused.err.index("svc market accept") :].splitlines()[0].split()
    assert svc(*command[1:-1], "0" * 16, **alone).code == 2  # differs from the reported one
    assert svc(*command[1:], **alone).code == 0
    assert svc("quote", _MODEL, "hello", "--window", "1h", **alone).code == 0


def test_unattended_order_above_the_ceiling_is_refused(svc: Svc) -> None:
    dear = ("--rate-in", "10000000000", "--rate-out", "10000000000", "--window", "1h")
    refused = svc("submit", _MODEL, "hello", *dear)
    assert (refused.code, refused.out) == (3, "")
    assert "above the default ceiling of 1 " in refused.err
    quoted = svc("quote", _MODEL, "hello", *dear)
    assert quoted.code == 0
    assert "above the default ceiling" in quoted.err
    assert "this market's operator" in quoted.out
    assert svc("submit", _MODEL, "hello", *dear, SVC_MAX_AMOUNT="5").code == 3


def test_job_is_verified_fact_by_fact(svc: Svc) -> None:
    ordered = svc("submit", _MODEL, "hello", "--window", "1h")
    assert ordered.code == 0, ordered.err
    job = ordered.out.strip()
    assert svc("wait", job).code == 0
    verified = svc("verify", job)
    assert verified.code == 0, verified.err
    by = {line.split("\t")[0]: line.split("\t")[2] for line in verified.out.splitlines()}
    assert by["amount"] == "your own signature"
    assert by["deployment"] == "the address book"
    assert {by[fact] for fact in ("owner", "order", "state", "result", "shares")} == {"the chain"}
    unchecked = svc("verify", job, SVC_RPC_URL=None)
    assert unchecked.code == 9
    assert "unverified" in unchecked.out


def test_doctor_says_who_vouches(svc: Svc) -> None:
    examined = svc("doctor")
    assert examined.code == 0, examined.out
    for words in ("verified by the address book", "contracts are verified by the chain", "keys and listings of"):
        assert words in examined.out


def test_plain_http_to_another_machine_is_refused(svc: Svc) -> None:
    refused = svc("models", SVC_BASE_URL="http://market.example")
    assert refused.code == 2
    assert "--insecure-http" in refused.err
