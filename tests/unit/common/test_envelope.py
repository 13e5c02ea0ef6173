"""Envelopes and result bodies: one accepted spelling per value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.box import PublicKey
from common.envelope import Envelope, ResultBody
from common.refusal import Refused
from tests.unit.common.test_strict_json import TEXTS, VALUES
from tests.vectors.vector_file import Case, cases

OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
ENVELOPES = st.builds(
    Envelope,
    owner=st.binary(min_size=20, max_size=20),
    model=TEXTS.filter(bool),
    input=OBJECTS,
    result_key=st.binary(min_size=31, max_size=31).map(lambda raw: PublicKey(b"\x09" + raw)),
    custom_id=st.one_of(st.none(), TEXTS.filter(bool)),
)
BODIES = st.builds(ResultBody, job_id=st.binary(min_size=32, max_size=32), output=VALUES, usage=OBJECTS)


@pytest.mark.parametrize("case", cases("envelope.json"), ids=lambda case: case["name"])
def test_plaintext_vector(case: Case) -> None:
    kind = Envelope if case["kind"] == "envelope" else ResultBody
    raw = case["text"].encode()
    if "refused" in case:
        with pytest.raises(Refused) as caught:
            kind.parse(raw)
        assert caught.value.code == case["refused"]
        return
    read = kind.parse(raw)
    assert read.encode() == raw
    fields = case["fields"]
    if isinstance(read, Envelope):
        assert (f"0x{read.owner.hex()}", read.model) == (fields["owner"], fields["model"])
        assert (read.input, read.custom_id) == (fields["input"], fields.get("custom_id"))
        assert f"0x{read.result_key.raw.hex()}" == fields["result_key"]
    else:
        assert f"0x{read.job_id.hex()}" == fields["job_id"]
        assert (read.output, read.usage) == (fields["output"], fields["usage"])


@pytest.mark.parametrize("values", [[[]] * 60, [1] * 120, [{"a": 1}] * 60], ids=["lists", "numbers", "objects"])
def test_plaintext_of_countless_values_is_neither_read_nor_made(
    values: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = Envelope(bytes(20), "model", {"a": values}, PublicKey(b"\x09" + bytes(31)))
    body = ResultBody(bytes(32), values, {})
    raw_envelope, raw_body = envelope.encode(), body.encode()
    monkeypatch.setattr("common.envelope.MAX_ENVELOPE_VALUES", 100)
    monkeypatch.setattr("common.envelope.MAX_RESULT_VALUES", 100)
    for act in (
        lambda: Envelope.parse(raw_envelope),
        lambda: ResultBody.parse(raw_body),
        envelope.encode,
        body.encode,
    ):
        with pytest.raises(Refused, match="at most 100 JSON values"):
            act()


@given(ENVELOPES)
def test_an_envelope_round_trips(envelope: Envelope) -> None:
    assert Envelope.parse(envelope.encode()) == envelope


@given(BODIES)
def test_a_result_body_round_trips(body: ResultBody) -> None:
    assert ResultBody.parse(body.encode()) == body


@given(ENVELOPES, st.data())
def test_envelope_has_one_accepted_spelling(envelope: Envelope, data: st.DataObject) -> None:
    raw = envelope.encode()
    at = data.draw(st.integers(0, len(raw)))
    changed = raw[:at] + data.draw(st.sampled_from([b" ", b"\n", b"0", b"\\", b'"', b","])) + raw[at:]
    try:
        read = Envelope.parse(changed)
    except Refused:
        return
    assert read.encode() == changed  # the change produced another value in its only accepted spelling
    assert read != envelope


@pytest.mark.parametrize(
    "change",
    [{"owner": bytes(19)}, {"model": ""}, {"custom_id": ""}, {"custom_id": "x" * 65}, {"input": "text"}],
)
def test_an_envelope_that_no_reader_would_take_is_not_written(change: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "owner": bytes(20),
        "model": "m",
        "input": {},
        "result_key": PublicKey(b"\x09" * 32),
    }
    with pytest.raises(Refused):
        Envelope(**(fields | change)).encode()  # type: ignore[arg-type]  # what the types forbid is tried


@pytest.mark.parametrize("change", [{"job_id": bytes(31)}, {"usage": None}, {"output": 2**53}])
def test_a_result_body_that_no_reader_would_take_is_not_written(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"job_id": bytes(32), "output": None, "usage": {}}
    with pytest.raises(Refused):
        ResultBody(**(fields | change)).encode()  # type: ignore[arg-type]  # what the types forbid is tried
