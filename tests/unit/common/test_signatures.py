"""Both ways of answering are held against each other, and against the vectors."""

import pytest
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.domains import DIGEST_PREFIX
from common.keccak import keccak256
from common.native import build
from common.native.library import load
from common.secp256k1 import Wallet, signed, signers, signers_by_loop
from common.transactions import sign_in_steps
from tests.unit.common.messages.test_signed_types import SIGNED, read
from tests.vectors.vector_file import cases

ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
EDGES = [0, 1, ORDER // 2, ORDER // 2 + 1, ORDER - 1, ORDER, 2**256 - 1]
TYPES = {kind.__name__: kind for kind in SIGNED}

prefixes = st.binary(min_size=34, max_size=34)
structs = st.binary(max_size=300)  # over two blocks of keccak
scalars = (st.sampled_from(EDGES) | st.integers(0, 2**256 - 1)).map(lambda number: number.to_bytes(32, "big"))


@st.composite
def questions(draw):
    """(question, who signed it or None when anybody or nobody may have)"""
    prefix, struct = draw(prefixes), draw(structs)
    if draw(st.booleans()):
        signature = draw(scalars) + draw(scalars) + bytes([draw(st.integers(0, 255))])
        return signed(prefix, struct, signature), None
    wallet = Wallet(draw(st.integers(1, ORDER - 1)).to_bytes(32, "big"))
    return signed(prefix, struct, wallet.sign(keccak256(prefix + keccak256(struct)))), wallet.address


@pytest.fixture(scope="module", params=[[], ["-DONE_BY_ONE"]], ids=["as for here", "without AVX-512"])
def library(tmp_path_factory, request):
    if build.compiler() is None:
        pytest.skip("no C compiler here")
    path = tmp_path_factory.mktemp("native") / "signatures.so"
    assert build.compile_library(path, *request.param) is None
    return path


def test_the_compiled_way_answers_as_the_loop_does(library):
    by_library = load(library).signers

    @given(st.lists(questions(), max_size=8))
    def check(asked):
        answers = by_library([question for question, _ in asked])
        assert answers == signers_by_loop([question for question, _ in asked])
        assert all(answer == signer for answer, (_, signer) in zip(answers, asked, strict=True) if signer is not None)

    check()


def test_every_vector_of_typed_data_is_answered_with_its_signer():
    vectors = cases("eip712.json")
    asked = [
        signed(
            DIGEST_PREFIX + raw(case["separator"]),
            read(TYPES[case["primary_type"]], case["message"]).packed(),
            raw(case["signature"]),
        )
        for case in vectors
    ]
    assert signers(asked) == [raw(case["signer"]) for case in vectors]


@pytest.mark.parametrize("length", [0, 64, 66])
def test_a_signature_of_another_length_is_nobodys(length):
    assert signers([signed(bytes(34), b"struct", b"\x01" * length)]) == [None]


@pytest.mark.parametrize("length", [0, 1, 135, 136, 137, 271, 272, 273])
def test_structs_that_end_at_the_edge_of_a_block_are_hashed_whole(library, length):
    prefix, struct, wallet = bytes(34), bytes(range(256)) + bytes(length), Wallet(bytes(31) + b"\x01")
    question = signed(prefix, struct[:length], wallet.sign(keccak256(prefix + keccak256(struct[:length]))))
    assert load(library).signers([question]) == [wallet.address]


def test_the_compiled_way_signs_transactions_as_the_steps_do(library):
    compiled = load(library)

    @given(
        st.integers(1, ORDER - 1),
        st.integers(0, 300) | st.sampled_from([55, 56, 4096, 4097, 65_535, 65_536]),
        st.binary(),
    )
    def check(secret, length, content):
        fields, raw_secret = (content + bytes(length))[:length], secret.to_bytes(32, "big")
        assert compiled.sign_transaction(raw_secret, fields) == sign_in_steps(Wallet(raw_secret), fields)

    check()


def test_a_secret_that_is_no_key_signs_nothing(library):
    with pytest.raises(ValueError, match="no private key"):
        load(library).sign_transaction(bytes(32), b"fields")


def test_scalars_with_leading_zeros_are_written_short_by_both(library):
    compiled, wallet = load(library), Wallet(bytes(31) + b"\x02")
    lengths = set()
    for number in range(600):  # about nine of them have a short scalar
        fields = number.to_bytes(2, "big")
        raw, _ = signed = compiled.sign_transaction(bytes(31) + b"\x02", fields)
        assert signed == sign_in_steps(wallet, fields)
        lengths.add(len(raw))
    assert len(lengths) > 1


def test_without_its_library_the_loop_answers(tmp_path):
    assert load(tmp_path / "signatures.so") is None


def test_a_library_that_cannot_be_loaded_counts_as_none(tmp_path):
    (tmp_path / "signatures.so").write_text("of another machine")
    assert load(tmp_path / "signatures.so") is None


def test_a_build_without_a_compiler_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in build.compile_library(tmp_path / "signatures.so")


def test_a_compiler_that_fails_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert "false failed" in build.compile_library(tmp_path / "signatures.so")
    assert not list(tmp_path.iterdir())
