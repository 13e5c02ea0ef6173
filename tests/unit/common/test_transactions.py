import pytest
from eth_account import Account
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.keccak import keccak256
from common.secp256k1 import Wallet
from common.transactions import Transaction
from tests.vectors.vector_file import cases

SECRET = b"\x17" * 32
U64, U256 = 2**64 - 1, 2**256 - 1


@pytest.mark.parametrize("case", cases("transactions.json"), ids=lambda case: case["name"])
def test_a_signed_transaction_is_as_in_the_vectors(case):
    signed = Transaction(
        chain_id=int(case["chain_id"]),
        nonce=int(case["nonce"]),
        max_priority_fee_per_gas=int(case["max_priority_fee_per_gas"]),
        max_fee_per_gas=int(case["max_fee_per_gas"]),
        gas=int(case["gas"]),
        to=case["to"] and raw(case["to"]),
        value=int(case["value"]),
        data=raw(case["data"]) * int(case["data_repeated"]),
    ).sign(Wallet(raw(case["secret"])))
    assert signed.hash == raw(case["hash"])
    assert case["raw"] is None or signed.raw == raw(case["raw"])


transactions = st.builds(
    Transaction,
    chain_id=st.integers(1, 2**53 - 1),
    nonce=st.integers(0, U64 - 1),
    max_priority_fee_per_gas=st.integers(0, U256),
    max_fee_per_gas=st.integers(0, U256),
    gas=st.integers(0, U64),
    to=st.none() | st.binary(min_size=20, max_size=20),
    value=st.integers(0, U256),
    data=st.binary(max_size=400),
)


@given(transactions)
def test_a_transaction_is_signed_as_eth_account_does(transaction):
    described = {
        "type": 2,
        "chainId": transaction.chain_id,
        "nonce": transaction.nonce,
        "maxPriorityFeePerGas": transaction.max_priority_fee_per_gas,
        "maxFeePerGas": transaction.max_fee_per_gas,
        "gas": transaction.gas,
        "value": transaction.value,
        "data": transaction.data,
    } | ({} if transaction.to is None else {"to": transaction.to})
    expected = Account.from_key(SECRET).sign_transaction(described)
    signed = transaction.sign(Wallet(SECRET))
    assert signed.raw == bytes(expected.raw_transaction)
    assert signed.hash == bytes(expected.hash) == keccak256(signed.raw)


@pytest.mark.parametrize("length", [0, 19, 21, 32])
def test_a_receiver_that_is_no_address_makes_no_transaction(length):
    with pytest.raises(ValueError, match="to must be 20 bytes"):
        Transaction(1, 0, 0, 0, 21_000, bytes(length), 0, b"").sign(Wallet(SECRET))


def test_negative_integer_is_never_signed():
    with pytest.raises(OverflowError):
        Transaction(1, -1, 0, 0, 21_000, bytes(20), 0, b"").sign(Wallet(SECRET))
