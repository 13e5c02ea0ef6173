"""Vectors, and verdicts about situations that a run of a correct program does not reach."""

import json
from pathlib import Path
from typing import Any

import pytest

from common import abi, artifacts
from common.api.chain import DeploymentFields, SessionShape
from common.api.market import ModelList
from common.api.shapes import Digits
from common.box import SecretKey
from common.contract_events import call_data, returned_values
from common.scalars import hex_of
from tests.conformance.market import Heard
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.serving import ServedRequest
from tests.conformance.situations import ROUNDS, again_at_once, signed_anew
from tests.conformance.vectors import OUTPUTS, cases_of
from tests.conformance.verdicts import Report, misfit
from tests.vectors.vector_file import FOLDER

JOB = "0x" + "0a" * 32
REFUSED = {"op": "settle", "job_id": JOB, "issued_at": 1_800_000_000, "signature": "0x11", "result": "AA=="}


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({**REFUSED, "issued_at": 1_800_000_001, "signature": "0x22"}, None),
        # An earlier time is correct for a clock that ran ahead. Another result is another op in the same second.
        ({**REFUSED, "issued_at": 1_799_999_000, "signature": "0x22"}, None),
        ({**REFUSED, "result": "AQ=="}, None),
        (REFUSED, "the refused settle again, byte for byte: issued_at 1800000000"),
    ],
)
def test_only_the_refused_bytes_again_are_wrong_after_stale_op(again: dict[str, Any], said: str | None) -> None:
    market = ProviderMarket()
    market.heard += [Heard(0.0, "settle", JOB, dict(REFUSED), 409), Heard(1.0, "settle", JOB, dict(again), 201)]
    [stale] = [one for situations in ROUNDS for one in situations if one.tried == "settle refused as stale"]
    assert stale.said == "settled, and no fail, signed anew with a new issued_at"
    assert signed_anew("settle")(stale, market, JOB) == said


@pytest.mark.parametrize(("waited", "said"), [(0.4, None), (31.0, "the claim again after 31 s")])
def test_claim_is_resent_after_sign_in_but_not_when_reoffered(waited: float, said: str | None) -> None:
    market = ProviderMarket()
    market.heard += [
        Heard(at, "claim", JOB, {"op": "claim"}, status) for at, status in ((5.0, 401), (5.0 + waited, 201))
    ]
    [forgotten] = [one for each in ROUNDS for one in each if one.tried == "claim with a session that is forgotten"]
    assert forgotten.expected.further is again_at_once
    assert again_at_once(forgotten, market, JOB) == said


@pytest.mark.parametrize(
    ("registry", "function", "words", "expected"),
    [
        ("JobRegistry", "fees", [], {"feeBps": 250, "gasFee": 2000}),
        ("ProviderRegistry", "provider", [abi.uint(7)], {"boxKey": SecretKey(b"\2" * 32).public.raw, "listed": True}),
    ],
)
async def test_node_of_the_market_answers_the_reads_of_a_provider(
    registry: str, function: str, words: list[bytes], expected: dict[str, object]
) -> None:
    market = ProviderMarket(box_key=SecretKey(b"\2" * 32).public)
    artifact = artifacts.load_artifact(registry)
    call = {"to": "0x" + "0a" * 20, "data": hex_of(call_data(artifact, function, *words))}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
    reply = await market.handle(ServedRequest("POST", "/rpc", {}, {}, json.dumps(asked).encode()))
    read = returned_values(artifact, function, bytes.fromhex(json.loads(reply.body)["result"][2:]))
    assert {name: read[name] for name in expected} == expected


def test_every_vector_file_is_fed_without_its_answers() -> None:
    assert OUTPUTS.keys() == {path.stem for path in Path(FOLDER).glob("*.json")}
    for file in OUTPUTS:
        for asked in cases_of(FOLDER, file):
            given = json.loads(asked.line)["case"]
            assert "refused" not in given
            assert not asked.follows.keys() & given.keys()
            assert asked.follows or asked.refused or not OUTPUTS[file], f"{file}: nothing follows from {asked.name}"


DEPLOYMENT: dict[str, Any] = {
    "chain_id": 1,
    "contracts": dict.fromkeys(("job_registry", "provider_registry", "ask_registry", "paytoken"), "0x" + "0a" * 20),
    "decimals": 6,
    "token_domain": {"name": "Dollar", "version": "1"},
    "gas_price": "1",
    "head_block": "1",
    "block_time_ms": 3,
    "fee_bps": 3,
}
MODEL: dict[str, Any] = {"object": "model", "id": "m", "owned_by": "x", "svc": {"model_id": "1", "enabled": True}}


def test_answer_that_has_more_than_its_shape_fits() -> None:
    assert misfit({**DEPLOYMENT, "later": {"let": "it be"}}, DeploymentFields[Digits]) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gas_price": 1}, "$.gas_price"),
        ({"gas_price": "01"}, "$.gas_price"),
        ({"fee_bps": "3"}, "$.fee_bps"),
        ({"contracts": {**DEPLOYMENT["contracts"], "paytoken": "0x" + "0A" * 20}}, "$.contracts.paytoken"),
        ({"contracts": {**DEPLOYMENT["contracts"], "paytoken": "0x" + "0a" * 20 + "\n"}}, "$.contracts.paytoken"),
    ],
)
def test_misfit_names_the_member_that_does_not_fit(changed: dict[str, Any], said: str) -> None:
    assert said in str(misfit({**DEPLOYMENT, **changed}, DeploymentFields[Digits]))


def test_member_that_may_be_left_out_may_be_and_others_may_not() -> None:
    assert misfit({"token": "t", "expires_at": 1}, SessionShape) is None
    assert "expires_at" in str(misfit({"token": "t"}, SessionShape))
    listed = {"object": "list", "as_of_block": "1", "data": [MODEL]}
    assert misfit(listed, ModelList) is None
    untagged = {name: value for name, value in MODEL.items() if name != "object"}
    assert misfit({**listed, "data": [untagged]}, ModelList) == "$.data[0]: object is not model"


def test_report_that_looked_at_nothing_does_not_hold() -> None:
    report = Report()
    report.leave("area", "one", "no wallet", "")
    assert not report.holds
    report.judge("area", "two", "this", None, "")
    assert report.holds
    report.judge("area", "three", "this", "that", "PAGE.md")
    assert not report.holds
    assert [(row.what, row.text) for row in report.wrong] == [("area: three", "that: expected this (PAGE.md)")]
