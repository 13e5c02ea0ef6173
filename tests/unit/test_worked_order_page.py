"""The page of the worked order shows the values of its vectors."""

import json
import re
from pathlib import Path

import pytest

from coordinatord.api.orders.bodies import OrderBody, read_submission
from coordinatord.api.provider_ops.ops import SettleOp, read_op
from tests.vectors.vector_file import Case, cases

_WHOLE = (Path(__file__).parents[2] / "docs" / "protocol" / "vectors.md").read_text("utf-8")
PAGE = _WHOLE.split("\n## The worked order\n")[1].split("\n## ")[0]
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = [text for kind, text in FENCED if not kind]
SUBMISSION, OUTPUT, SETTLE = (json.loads(text) for kind, text in FENCED if kind == "json")


@pytest.fixture(name="one")
def _one() -> Case:
    [one] = cases("worked_order.json")
    return one


def values() -> dict[str, str]:
    """Return each value of the page by its name. A value is the indented lines below the name."""
    found: dict[str, str] = {}
    for block in BLOCKS:
        for name, lines in re.findall(r"^(\w+)\n((?:    .*\n)+)", block, re.MULTILINE):
            assert name not in found
            found[name] = "".join(line[4:] for line in lines.splitlines())
        assert len(re.findall(r"^\S.*\n", block, re.MULTILINE)) == len(re.findall(r"^\w+\n    ", block, re.MULTILINE))
    return found


def test_every_value_is_that_of_the_vectors(one: Case) -> None:
    told = {name: json.dumps(value, separators=(",", ":")) for name, value in one.items() if isinstance(value, dict)}
    assert values() == {name: told.get(name, value) for name, value in one.items() if name != "name"}


def test_submission_is_the_order_of_the_vectors(one: Case) -> None:
    assert isinstance(read_submission(SUBMISSION), OrderBody)
    order = one["order"]
    told = {
        "c": order["c"],
        "model_id": order["modelId"],
        "sla_secs": order["slaSecs"],
        "rate_in": order["rateIn"],
        "rate_out": order["rateOut"],
        "units_in": order["unitsIn"],
        "units_out": order["unitsOut"],
        "designated": order["designated"],
        "expires_at": order["expiresAt"],
        "owner": one["owner"],
        "job_id": one["job_id"],
        "signature": one["order_signature"],
        "auth_sig": one["auth_sig"],
        "amount": one["amount"],
        "container": one["container"],
    }
    assert {name: str(value) for name, value in SUBMISSION.items()} == told


def test_settle_is_the_op_of_the_vectors(one: Case) -> None:
    assert isinstance(read_op(SETTLE), SettleOp)
    assert {name: str(value) for name, value in SETTLE.items()} == {
        "op": "settle",
        "job_id": one["job_id"],
        "completion_tok": one["completion_tok"],
        "issued_at": one["settle_issued_at"],
        "result": one["sealed_result"],
        "signature": one["settle_signature"],
    }
