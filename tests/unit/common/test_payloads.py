"""Envelopes, bundles and result bodies: one accepted spelling per value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import bundle, container, sealed_result
from common.box import PublicKey, SecretKey
from common.bundle import BundleItem, ItemResult, bundle_units, read_bundle, read_bundle_output
from common.envelope import Envelope, ResultBody
from common.pricing.model_input import modality_of
from common.pricing.units import Units, units_of
from common.refusal import Refused
from tests.unit.common.test_container import sealed_of
from tests.unit.common.test_strict_json import TEXTS, VALUES
from tests.vectors.sealing import OWNER, REGISTRY
from tests.vectors.vector_file import Case, cases, pattern

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
    for act in (lambda: Envelope.parse(raw_envelope), lambda: ResultBody.parse(raw_body), envelope.encode, body.encode):
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
    "change", [{"owner": bytes(19)}, {"model": ""}, {"custom_id": ""}, {"custom_id": "x" * 65}, {"input": "text"}]
)
def test_an_envelope_that_no_reader_would_take_is_not_written(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"owner": bytes(20), "model": "m", "input": {}, "result_key": PublicKey(b"\x09" * 32)}
    with pytest.raises(Refused):
        Envelope(**(fields | change)).encode()  # type: ignore[arg-type]  # what the types forbid is tried


@pytest.mark.parametrize("change", [{"job_id": bytes(31)}, {"usage": None}, {"output": 2**53}])
def test_a_result_body_that_no_reader_would_take_is_not_written(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"job_id": bytes(32), "output": None, "usage": {}}
    with pytest.raises(Refused):
        ResultBody(**(fields | change)).encode()  # type: ignore[arg-type]  # what the types forbid is tried


VECTORS = cases("bundle.json")


def units_of_case(case: Case) -> int:
    rates = int(case["rate_in"]), int(case["rate_out"])
    if case["kind"] == "result":
        return bundle_units(
            (Units(item.units_in, item.units_out) for item in read_bundle_output(case["output"])), *rates
        )
    units = [
        units_of(modality_of(case["endpoint"], item.input), item.input, units_out=item.units_out)
        for item in read_bundle(case["input"])
    ]
    return bundle_units(units, *rates)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_shared_vectors_hold(case: Case) -> None:
    if case["kind"] == "evidence":
        assert (bundle.announced_max_items(case["evidence"]) or 0) == case["largest"]
    elif "refused" in case:
        with pytest.raises(Refused) as refused:
            units_of_case(case)
        assert refused.value.code == case["refused"]
    else:
        expected = case["completion_tok"] if case["kind"] == "result" else case["units_out"]
        assert units_of_case(case) == expected


def test_items_survive_the_round_trip() -> None:
    items = (BundleItem({"input": "hi"}), BundleItem({"input": "ho"}, "b", 7))
    assert read_bundle(bundle.bundle_input(items)) == items
    results = (
        ItemResult("completed", "a", [1], {"units": 2}, None, 3, 4),
        ItemResult("failed", error_code="backend_error"),
        ItemResult("not_run", "c"),
    )
    assert read_bundle_output(bundle.bundle_output(results)) == results


def test_bundle_of_501_items_is_refused() -> None:
    assert len(read_bundle(bundle.bundle_input([BundleItem({})] * 500))) == 500
    with pytest.raises(Refused, match="1 to 500"):
        read_bundle(bundle.bundle_input([BundleItem({})] * 501))


SECRET = SecretKey(b"\x09" * 32)
PLACE = (31337, REGISTRY, b"\x11" * 32)


def opened(case: Case) -> bytes:
    place = (case["chain_id"], bytes.fromhex(case["job_registry"]), bytes.fromhex(case["job_id"]))
    return sealed_result.open_result(SecretKey(bytes.fromhex(case["secret"])), *place, sealed_of(case))


@pytest.mark.parametrize("case", cases("result.json"), ids=lambda case: case["name"])
def test_result_vector(case: Case) -> None:
    if "refused" in case:
        with pytest.raises(Refused) as caught:
            opened(case)
        assert caught.value.code == case["refused"]
        return
    long = "plaintext_length" in case
    assert opened(case) == (pattern(case["plaintext_length"]) if long else bytes.fromhex(case["plaintext"]))


@given(st.binary(max_size=200), st.integers(1, 250))
def test_any_pieces_round_trip(plaintext: bytes, size: int) -> None:
    sealer = sealed_result.ResultSealer(SECRET.public, *PLACE)
    sealed = b"".join([sealer.push(plaintext[at : at + size]) for at in range(0, len(plaintext), size)])
    sealed += sealer.finish()
    opener = sealed_result.ResultOpener.with_secret(SECRET, *PLACE)
    pulled = b"".join([opener.pull(sealed[at : at + size]) for at in range(0, len(sealed), size)])
    assert pulled + opener.finish() == plaintext


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    sealed = sealed_result.seal_result(SECRET.public, *PLACE, b"out")
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            sealed_result.open_result(SECRET, *PLACE, changed)
    for length in range(len(sealed)):
        with pytest.raises(Refused):
            sealed_result.open_result(SECRET, *PLACE, sealed[:length])


def test_a_container_is_no_result_even_to_the_same_key() -> None:
    sealed = container.seal(SECRET.public, 31337, REGISTRY, OWNER, b"payload")
    with pytest.raises(Refused) as caught:
        sealed_result.open_result(SECRET, 31337, REGISTRY, OWNER + bytes(12), sealed)
    assert caught.value.code == "undecryptable"
