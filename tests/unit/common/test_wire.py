from typing import Any

import attrs
import pytest

from common.address_book import TokenDomain
from common.api.chain import DeploymentFields, reported_book
from common.api.fields import (
    BYTES32,
    UINT32,
    Choice,
    ListOf,
    NestedObject,
    Uint,
    body_field,
    object_example,
    read_object,
)
from common.api.shapes import read_shape
from common.refusal import Refused
from tests.support.fakes.market import BOOK


@attrs.frozen
class Inner:
    n: int = body_field(Uint(8))
    sla: int = body_field(UINT32)


@attrs.frozen
class Outer:
    model_id: int = body_field(UINT32)
    op: str = body_field(Choice(("a", "b"), "invalid_op"))
    job_id: bytes = body_field(BYTES32)
    quotes: tuple[Inner, ...] = body_field(ListOf(NestedObject(Inner), 64))
    snapshot: Inner | None = body_field(NestedObject(Inner), optional=True)


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"op": "a", "quotes": []}, "model_id is required; job_id is required", "model_id", None),
        ({"op": "c", "model_id": 1, "quotes": []}, "op must be one of a, b; job_id is required", "op", "invalid_op"),
        (
            {"op": "a", "model_id": 1, "job_id": "0x" + "11" * 32, "quotes": [{"n": 1}, {}]},
            "quotes[0].sla is required; quotes[1].n is required; quotes[1].sla is required",
            "quotes[0].sla",
            None,
        ),
        ({}, "model_id is required; op is required; job_id is required; quotes is required", "model_id", None),
    ],
    ids=["missing", "malformed and missing", "in arrays", "empty"],
)
def test_refusal_names_everything_that_is_wrong(
    body: dict[str, Any], message: str, param: str, code: str | None
) -> None:
    with pytest.raises(Refused) as refused:
        read_object(Outer, body)
    assert (refused.value.message, refused.value.param, refused.value.code) == (message, param, code)


def test_refusal_of_very_much_says_how_much_more_there_is() -> None:
    body = {"op": "a", "model_id": 1, "job_id": "0x" + "11" * 32, "quotes": [{}] * 64}
    with pytest.raises(Refused) as refused:
        read_object(Outer, body)
    *told, last = refused.value.message.split("; ")
    assert (len(told), last) == (2 * 16, "and 48 more")


def test_example_is_a_body_that_is_read() -> None:
    example = object_example(Outer, "snapshot")
    assert set(example) == {"model_id", "op", "job_id", "quotes"}
    assert read_object(Outer, {**example, "quotes": [{"n": 1, "sla": 1}]}).op == "a"


@pytest.mark.parametrize("kind", [Uint(8), Uint(32), Uint(64), Uint(128), Uint(32, 1, 99)])
def test_numbers_are_described_by_their_maximum_digits(kind: Uint) -> None:
    [_, text] = kind.schema()["anyOf"]
    longest = "9" * text["maxLength"]
    top = kind.maximum if kind.maximum is not None else 2**kind.bits - 1
    assert kind.read(str(top), "n") == top
    assert len(str(top)) == len(longest)
    with pytest.raises(Refused):
        kind.read(longest + "9", "n")


TOLD: dict[str, object] = {
    "chain_id": BOOK.chain_id,
    "contracts": {
        name: "0x" + getattr(BOOK, name).hex()
        for name in ("job_registry", "provider_registry", "ask_registry", "paytoken")
    },
    "decimals": BOOK.payment_token_decimals,
    "token_domain": {"name": BOOK.token_domain.name, "version": BOOK.token_domain.version},
    "gas_price": "1",
    "head_block": "2",
    "block_time_ms": 1000,
    "fee_bps": 250,
    "a member of later": True,
}


def test_deployment_matches_the_address_book() -> None:
    told = reported_book(read_shape(DeploymentFields[int], TOLD))
    assert attrs.evolve(BOOK, deploy_block=77).differences(told) == []


@pytest.mark.parametrize(
    "changed",
    [{"chain_id": True}, {"contracts": {}}, {"token_domain": {"name": "n"}}, {"decimals": -1}, {"contracts": None}],
)
def test_anything_else_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(Refused):
        reported_book(read_shape(DeploymentFields[int], TOLD | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"chain_id": 1},
        {"job_registry": b"\x09" * 20},
        {"provider_registry": b"\x09" * 20},
        {"ask_registry": b"\x09" * 20},
        {"paytoken": b"\x09" * 20},
        {"payment_token_decimals": 18},
        {"token_domain": TokenDomain(BOOK.token_domain.name, "2")},
        {"token_domain": TokenDomain("Other Dollar", BOOK.token_domain.version)},
    ],
)
def test_any_other_fact_is_a_difference_that_shows_both(changed: dict[str, object]) -> None:
    (difference,) = BOOK.differences(attrs.evolve(BOOK, **changed))  # type: ignore[arg-type] # one field each
    assert "expected" in difference
    assert "reported" in difference
