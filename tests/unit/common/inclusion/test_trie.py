import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.inclusion.trie import EMPTY_ROOT, Trie, verify_proof
from common.refusal import Refused


@pytest.mark.parametrize(
    ("values", "root"),
    [
        ({}, "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"),
        (
            {b"doe": b"reindeer", b"dog": b"puppy", b"dogglesworth": b"cat"},
            "8aad789dff2f538bca5d8ea56e8abe10f4c7ba3a5dea95fea4cd6e7c3a1168d3",
        ),
    ],
    ids=["empty", "one key within another"],
)
def test_root_is_as_ethereums_own_tests_have_it(values: dict[bytes, bytes], root: str) -> None:
    assert Trie(values).root.hex() == root
    assert EMPTY_ROOT.hex().startswith("56e8")


@given(st.dictionaries(st.binary(max_size=4), st.binary(min_size=1, max_size=60), min_size=1, max_size=40))
def test_every_value_is_proved_under_its_root_only(values: dict[bytes, bytes]) -> None:
    trie = Trie(values)
    for key, value in values.items():
        assert verify_proof(trie.root, key, trie.proof(key)) == value
        with pytest.raises(Refused):
            verify_proof(trie.root, key + b"\0\0\0\0\0", trie.proof(key))
        with pytest.raises(Refused):
            verify_proof(trie.root, key, [*trie.proof(key), b"\xc0"])
        with pytest.raises(Refused):
            verify_proof(trie.root, key, trie.proof(key)[:-1])
