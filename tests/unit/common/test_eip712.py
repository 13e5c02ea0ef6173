import pytest
from eth_account.messages import encode_typed_data
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.eip712 import Domain, digest
from common.secp256k1 import recover_address
from tests.vectors.vector_file import cases

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
chain_ids = st.integers(0, 2**256 - 1)
contracts = st.none() | st.binary(min_size=20, max_size=20)


@given(names, names, chain_ids, contracts)
def test_separator_matches_eth_account(name, version, chain_id, contract):
    fields = {"name": name, "version": version, "chainId": chain_id}
    if contract is not None:
        fields["verifyingContract"] = contract
    oracle = encode_typed_data(fields, {"Cancel": [{"name": "n", "type": "uint8"}]}, {"n": 1})
    assert Domain(name, version, chain_id, contract).separator == oracle.header


def test_a_contract_of_another_length_than_an_address_is_refused():
    with pytest.raises(ValueError, match="20 bytes"):
        _ = Domain("SVC Jobs", "2", 1, bytes(32)).separator


@pytest.mark.parametrize("case", cases("eip712.json"), ids=lambda case: case["name"])
def test_separator_and_digest_are_as_in_the_vectors(case):
    described = case["domain"]
    contract = described.get("verifyingContract")
    domain = Domain(described["name"], described["version"], int(described["chainId"]), contract and raw(contract))
    assert domain.separator == raw(case["separator"])
    bound = digest(domain.separator, raw(case["struct_hash"]))
    assert bound == raw(case["digest"])
    assert recover_address(bound, raw(case["signature"])) == raw(case["signer"])
