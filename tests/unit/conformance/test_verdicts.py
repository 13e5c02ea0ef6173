from typing import Any

import pytest

from common.api.chain import DeploymentFields, SessionShape
from common.api.market import ModelList
from common.api.shapes import Digits
from tests.conformance.verdicts import Report, misfit

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
