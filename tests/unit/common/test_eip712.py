import pytest
from eth_account.messages import encode_typed_data
from hypothesis import given
from hypothesis import strategies as st

from common.eip712 import Domain, digest
from common.keccak import keccak256
from common.secp256k1 import recover
from tests.vectors.read import raw, vectors

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
chain_ids = st.integers(0, 2**256 - 1)
contracts = st.none() | st.binary(min_size=20, max_size=20)


@given(names, names, chain_ids, contracts)
def test_a_separator_is_what_eth_account_computes(name, version, chain_id, contract):
    fields = {"name": name, "version": version, "chainId": chain_id}
    if contract is not None:
        fields["verifyingContract"] = contract
    oracle = encode_typed_data(fields, {"Cancel": [{"name": "n", "type": "uint8"}]}, {"n": 1})
    assert Domain(name, version, chain_id, contract).separator == oracle.header


def test_a_contract_of_another_length_than_an_address_is_refused():
    with pytest.raises(ValueError, match="20 bytes"):
        _ = Domain("SVC Jobs", "2", 1, bytes(32)).separator


@pytest.mark.parametrize("name", vectors("eip712")["domains"])
def test_a_separator_is_as_in_the_vectors(name):
    described = vectors("eip712")["domains"][name]
    contract = described["verifyingContract"]
    domain = Domain(described["name"], described["version"], int(described["chainId"]), contract and raw(contract))
    assert domain.separator == raw(described["separator"])


def test_a_digest_binds_the_struct_to_the_domain():
    signed = vectors("eip712")
    case = signed["cases"]["Order"][1]
    separator = raw(signed["domains"]["jobs"]["separator"])
    bound = digest(separator, raw(case["struct_hash"]))
    assert recover(bound, raw(case["signature"])) == raw(signed["signer"])
    assert digest(keccak256(separator), raw(case["struct_hash"])) != bound
