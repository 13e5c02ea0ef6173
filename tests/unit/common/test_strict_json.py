"""Strict JSON: which texts are rejected and why, and the canonical spelling."""

import json
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.canonical_json import canonical
from common.refusal import Refused
from common.strict_json import parse
from tests.vectors.vector_file import Case, cases

WHY = {
    "syntax": "not valid JSON",
    "constant": "is not valid JSON",
    "infinite": "out of range",
    "duplicate_key": "duplicate key",
    "too_deep": "deeper than 32",
    "nul": "must not contain NUL",
    "lone_surrogate": "must not contain a lone surrogate",
    "not_utf8": "not valid UTF-8",
    "unsafe_integer": "must be within",
}

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=20)
NUMBERS = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not (number.is_integer() and 2**53 <= abs(number) < 1e21)
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=30,
)


@pytest.mark.parametrize("case", cases("strict_json.json"), ids=lambda case: case["name"])
def test_strict_json_vector(case: Case) -> None:
    raw = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    if "refused" in case:
        with pytest.raises(Refused, match=WHY[case["refused"]]):
            canonical(parse(raw))
    else:
        assert canonical(parse(raw)).decode() == case["canonical"]


@given(VALUES)
def test_canonical_spelling_round_trips(value: object) -> None:
    spelled = canonical(value)
    assert parse(spelled) == value
    assert canonical(parse(spelled)) == spelled


@given(VALUES)
def test_other_spellings_of_a_value_have_the_same_canonical_one(value: object) -> None:
    assert canonical(parse(json.dumps(value, indent=2).encode())) == canonical(value)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "", "é", '"', ":"]), st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)),
        max_size=5,
    )
)
def test_a_flat_object_is_read_unless_a_name_is_there_twice(members: list[tuple[str, object]]) -> None:
    spelled = ",".join(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in members)
    raw = b"{" + spelled.encode() + b"}"
    if len(dict(members)) == len(members):
        assert parse(raw) == dict(members)
    else:
        with pytest.raises(Refused, match="duplicate key"):
            parse(raw)


@pytest.fixture
def _recursion_limit_raised() -> Iterator[None]:
    """Some libraries raise the limit. The standard library's scanner then recurses until the stack overflows and the
    process crashes."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("_recursion_limit_raised")
@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '["\\"",{"[":'])
def test_very_deep_nesting_is_refused(opening: str) -> None:
    for text in (opening * 100_000, opening * 100_000 + "1" + "]" * 100_000):
        with pytest.raises(Refused, match="deeper than 32"):
            parse(text.encode())


def test_depth_is_counted_along_the_deepest_branch_only() -> None:
    branch = "[" * 31 + "]" * 31
    assert parse(f"[{branch},{branch},{branch}]".encode()) is not None
    with pytest.raises(Refused, match="deeper than 32"):
        parse(f"[{branch},[{branch}]]".encode())


def test_integer_with_too_many_digits_is_refused() -> None:
    with pytest.raises(Refused, match="too many digits"):
        parse(b"9" * (sys.get_int_max_str_digits() + 1))


def test_refusal_names_the_parameter() -> None:
    for raw in (b"{", b"\xff", b'{"a":1,"a":1}', b'"\\u0000"', b"[" * 33 + b"]" * 33, b"9" * 5_000):
        with pytest.raises(Refused) as caught:
            parse(raw, "metadata")
        assert (caught.value.param, caught.value.code) == ("metadata", None)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**53, "a\x00", "\ud800", {"\udfff": 1}, {"\x00": 1}, [1e20]]
)
def test_invalid_text_is_not_written(value: object) -> None:
    with pytest.raises(Refused):
        canonical(value)


def test_too_deep_value_is_not_written() -> None:
    value: list[object] = []
    for _ in range(31):
        value = [value]
    assert parse(canonical(value)) == value
    with pytest.raises(Refused, match="deeper than 32"):
        canonical([value])


@pytest.mark.parametrize("value", [b"bytes", {1}, object()])
def test_a_value_that_json_does_not_have_is_a_bug_of_the_caller(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)
