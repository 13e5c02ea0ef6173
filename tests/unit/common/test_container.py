"""Containers: vectors, commitments computed on a stream, and rejection of every altered byte."""

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import container
from common.box import SecretKey
from common.container import CommitmentHasher, Opener, Sealer
from common.key_derivation import data_key
from common.refusal import Refused
from tests.vectors.sealing import OWNER, REGISTRY, STRANGER, framed, stream
from tests.vectors.vector_file import Case, cases, pattern

SECRET = SecretKey(b"\x07" * 32)
PLACE = (31337, REGISTRY, OWNER)
PLAINTEXT = b'{"v":1,"input":{}}'
CONTAINER = container.seal(SECRET.public, *PLACE, PLAINTEXT)
COMMITTED = container.commitment_of(CONTAINER)


def sealed_of(case: Case) -> bytes:
    """Return the case's bytes: given, sealed again under the given header, or a pattern."""
    if "sealed" in case:
        return bytes.fromhex(case["sealed"])
    if "sealed_length" in case:
        return b"\x01" + pattern(case["sealed_length"] - 1)
    frames = framed(pattern(case["plaintext_length"]))
    ciphertext = stream(bytes.fromhex(case["dek"]), bytes.fromhex(case["header"]), frames)
    sealed = b"\x01" + bytes.fromhex(case["seed_wrap"]) + ciphertext
    assert hashlib.sha256(sealed).hexdigest() == case["sealed_sha256"]
    return sealed


def opened(case: Case) -> bytes:
    sealed = sealed_of(case)
    container.check_commitment(sealed, bytes.fromhex(case.get("c", "")))
    committed = container.commitment_of(sealed)
    assert committed.ct_hash.hex() == case["ct_hash"]
    assert committed.seed_wrap.hex() == case["seed_wrap"]
    assert committed.length == len(sealed)
    place = (case["chain_id"], bytes.fromhex(case["job_registry"]), bytes.fromhex(case["owner"]))
    return container.open_with_secret(SecretKey(bytes.fromhex(case["secret"])), *place, sealed)


@pytest.mark.parametrize("case", cases("container.json"), ids=lambda case: case["name"])
def test_container_vector(case: Case) -> None:
    if "refused" in case:
        with pytest.raises(Refused) as caught:
            opened(case)
        assert caught.value.code == case["refused"]
        return
    expected = pattern(case["plaintext_length"]) if "plaintext_length" in case else bytes.fromhex(case["plaintext"])
    assert opened(case) == expected
    assert container.open_with_data_key(bytes.fromhex(case["dek"]), sealed_of(case)) == expected


@given(st.binary(max_size=200), st.integers(1, 250), st.integers(1, 250))
def test_commitment_is_independent_of_chunking(plaintext: bytes, size_in: int, size_out: int) -> None:
    sealer = Sealer(SECRET.public, *PLACE)
    sealed = b"".join([sealer.push(plaintext[at : at + size_in]) for at in range(0, len(plaintext), size_in)])
    sealed += sealer.finish()
    assert len(sealed) == container.sealed_length(len(plaintext))
    opener, commitment = Opener.with_secret(SECRET, *PLACE), CommitmentHasher()
    again = b""
    for at in range(0, len(sealed), size_out):
        commitment.update(sealed[at : at + size_out])
        again += opener.pull(sealed[at : at + size_out])
    assert again + opener.finish() == plaintext
    assert commitment.finish() == container.commitment_of(sealed)


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(CONTAINER)):
        changed = bytearray(CONTAINER)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            container.open_with_secret(SECRET, *PLACE, changed)
        with pytest.raises(Refused):
            container.check_commitment(changed, COMMITTED.c)


def test_every_truncation_is_refused() -> None:
    for length in range(len(CONTAINER)):
        with pytest.raises(Refused):
            container.open_with_secret(SECRET, *PLACE, CONTAINER[:length])
        with pytest.raises(Refused):
            container.check_commitment(CONTAINER[:length], COMMITTED.c)


@given(st.binary(min_size=1, max_size=100))
def test_anything_appended_is_refused(trailing: bytes) -> None:
    with pytest.raises(Refused):
        container.open_with_secret(SECRET, *PLACE, CONTAINER + trailing)


@pytest.mark.parametrize(("wrap", "ct_hash"), [(79, 32), (81, 32), (80, 31), (80, 33)])
def test_a_commitment_of_parts_of_other_lengths_is_refused(wrap: int, ct_hash: int) -> None:
    with pytest.raises(Refused) as caught:
        container.commitment(bytes(wrap), bytes(ct_hash))
    assert caught.value.code == "bad_container"
    assert caught.value.param == ("ct_hash" if wrap == 80 else "seed_wrap")


def test_a_wrong_version_is_refused_before_the_rest_has_arrived() -> None:
    commitment = CommitmentHasher()
    with pytest.raises(Refused) as caught:
        commitment.update(b"\x02" + bytes(121))
    assert caught.value.code == "bad_version"


def test_too_short_container_is_reported_before_its_version() -> None:
    for refuse in (container.commitment_of, lambda raw: container.open_with_data_key(bytes(32), raw)):
        with pytest.raises(Refused) as caught:
            refuse(b"\x02" + bytes(120))
        assert caught.value.code == "too_short"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("length", [0, 1, 80, 81, 121, 122, 123, 81 + 24 + 65_553, 81 + 24 + 65_553 + 17])
def test_a_container_at_hand_is_judged_as_one_that_passes_by(version: int, length: int) -> None:
    raw = (bytes((version,)) + pattern(length))[:length]

    def by_the_piece() -> container.ContainerCommitment:
        commitment = CommitmentHasher()
        for at in range(0, length, 50_000):
            commitment.update(raw[at : at + 50_000])
        return commitment.finish()

    def judged(judge: Callable[[], container.ContainerCommitment]) -> container.ContainerCommitment | str | None:
        try:
            return judge()
        except Refused as refusal:
            return refusal.code

    assert judged(lambda: container.commitment_of(raw)) == judged(by_the_piece)


def test_key_released_to_a_thief_opens_nothing() -> None:
    # A thief posts the victim's container in an order of the thief, and a friend claims the job. The escrow unwraps the
    # seed, reads the owner (the thief) from the chain, and releases the key for that owner.
    seed = container.ContainerHead.parse(CONTAINER).open_seed(SECRET)
    released = data_key(seed, 31337, REGISTRY, STRANGER)
    with pytest.raises(Refused) as caught:
        container.open_with_data_key(released, CONTAINER)
    assert caught.value.code == "undecryptable"
    assert container.open_with_data_key(data_key(seed, *PLACE), CONTAINER) == PLAINTEXT


def test_the_seed_opens_too() -> None:
    seed = container.ContainerHead.parse(CONTAINER).open_seed(SECRET)
    opener = Opener.with_seed(seed, *PLACE)
    assert opener.pull(CONTAINER) + opener.finish() == PLAINTEXT


def test_two_seals_of_one_payload_share_nothing() -> None:
    other = container.seal(SECRET.public, *PLACE, PLAINTEXT)
    assert other[1:81] != CONTAINER[1:81]
    assert container.commitment_of(other).c != COMMITTED.c
