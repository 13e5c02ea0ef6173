"""The page of the worked order shows the values of its vectors."""

import json
import re
from pathlib import Path

import pytest

from common.canonical_json import canonical
from common.quotes import FeeTerms, quote
from coordinatord.api.orders.bodies import OrderBody, read_submission
from coordinatord.api.provider_ops.ops import SettleOp, read_op
from tests.vectors.vector_file import Case, cases

_WHOLE = (Path(__file__).parents[2] / "docs" / "protocol" / "vectors.md").read_text("utf-8")
PAGE = _WHOLE.split("\n## The worked order\n")[1].split("\n## ")[0]
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = [text for kind, text in FENCED if not kind]
SUBMISSION, OUTPUT, SETTLE = (json.loads(text) for kind, text in FENCED if kind == "json")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)


def values() -> dict[str, str]:
    """Return each value of the page by its name. A value is the indented lines below the name."""
    found: dict[str, str] = {}
    for block in BLOCKS:
        for name, lines in re.findall(r"^(\w+)\n((?:    .*\n)+)", block, re.MULTILINE):
            assert name not in found
            found[name] = "".join(line[4:] for line in lines.splitlines())
        assert len(re.findall(r"^\S.*\n", block, re.MULTILINE)) == len(re.findall(r"^\w+\n    ", block, re.MULTILINE))
    return found


@pytest.fixture(name="one")
def _one() -> Case:
    [one] = cases("worked_order.json")
    return one


def test_every_value_is_that_of_the_vectors(one: Case) -> None:
    told = {name: json.dumps(value, separators=(",", ":")) for name, value in one.items() if isinstance(value, dict)}
    assert values() == {name: told.get(name, value) for name, value in one.items() if name != "name"}


def test_prose_counts_as_the_vectors_do(one: Case) -> None:
    order = one["order"]
    terms = FeeTerms(int(one["fee_bps"]), int(one["gas_fee"]))
    priced = [int(order[name]) for name in ("rateIn", "rateOut", "unitsIn", "unitsOut")]
    rate_in, rate_out, units_in, units_out = priced
    quoted = quote(*priced, terms)
    body = json.loads(one["result_body"])
    assert body["output"] == OUTPUT
    output = len(canonical(OUTPUT))
    assert (body["usage"], str(-(-output // 4))) == ({"units": int(one["completion_tok"])}, one["completion_tok"])
    for sentence in (
        f"has {len(one['input'])} bytes: `units_in` is ⌈{len(one['input'])} / 4⌉ = {units_in}",
        f"`max_output_tokens`, {units_out}.",
        f"cap = ⌈({rate_in}·{units_in} + {rate_out}·{units_out}) / 10^6⌉ = {quoted.cap}",
        f"fee = ⌊{quoted.cap}·{terms.fee_bps} / 10^4⌋ = {quoted.fee}",
        f"amount = {quoted.cap} + {quoted.fee} + {terms.gas_fee}.",
        f"value {one['amount']}, validAfter 0, validBefore {int(order['expiresAt']) + 1}",
        f"cost = ⌈({rate_in}·{units_in} + {rate_out}·{one['completion_tok']}) / 10^6⌉ = {one['cost']}",
        f"⌊{one['cost']}·{terms.fee_bps} / 10^4⌋ + {terms.gas_fee}",
        f"the rest, {one['amount']} − {one['cost']} − {one['treasury']} = {one['refund']}.",
        f"of {output} bytes.",
        f"⌈{output} / 4⌉ = {one['completion_tok']}, which is no more than",
        f"ciphertext, {1 + 80 + len(one['ciphertext']) // 2 - 1} bytes",
        f"Provider {order['designated']} is the designated provider",
    ):
        assert " ".join(sentence.split()) in " ".join(PROSE.split())


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
