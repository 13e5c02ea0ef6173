from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_keys import keys
from eth_keys.exceptions import BadSignature, ValidationError
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.eip712 import Domain, digest, struct_hash
from common.keccak import keccak256
from common.messages.jobs import Cancel
from common.refusal import Refused
from common.secp256k1 import Wallet, recover_address
from common.transactions import Transaction
from tests.vectors.vector_file import cases

ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
SIGNATURES = cases("signatures.json")
ACCEPTED = [case for case in SIGNATURES if "signer" in case]
REFUSED = [case for case in SIGNATURES if "refused" in case]

digests = st.binary(min_size=32, max_size=32)
secrets = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_a_signature_recovers_to_its_signer(case):
    assert recover_address(raw(case["digest"]), raw(case["signature"])) == raw(case["signer"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case['refused']}: {case['name']}")
def test_malformed_signature_recovers_no_address(case):
    assert recover_address(raw(case["digest"]), raw(case["signature"])) is None


@given(digests, st.integers(0, 2**256 - 1), st.integers(0, 2**256 - 1), st.integers(0, 255))
def test_recovery_matches_another_implementation(digest, r, s, v):
    try:
        expected = keys.Signature(vrs=(v - 27, r, s)).recover_public_key_from_msg_hash(digest).to_canonical_address()
    except (BadSignature, ValidationError):
        expected = None
    if v not in {27, 28} or s > ORDER // 2:
        expected = None
    assert recover_address(digest, r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([v])) == expected


@given(secrets, digests)
def test_a_wallet_signs_as_eth_account_does(secret, digest):
    wallet = Wallet(secret)
    account = Account.from_key(secret)
    assert wallet.address == bytes.fromhex(account.address[2:])
    assert wallet.sign(digest) == bytes(account.unsafe_sign_hash(digest).signature)
    assert recover_address(digest, wallet.sign(digest)) == wallet.address


@given(secrets, digests)
def test_the_parity_of_a_recoverable_signature_is_its_v(secret, digest):
    wallet = Wallet(secret)
    compact, parity = wallet.sign_recoverable(digest)
    assert compact + bytes([27 + parity]) == wallet.sign(digest)


def test_threads_that_check_at_once_do_not_mix_their_signers_up():
    digest = bytes(range(32))
    wallets = [Wallet(bytes(31) + bytes([number])) for number in range(1, 9)]
    signed = [(wallet.address, wallet.sign(digest)) for wallet in wallets] * 50
    with ThreadPoolExecutor(8) as pool:
        recovered = list(pool.map(lambda one: recover_address(digest, one[1]), signed))
    assert recovered == [address for address, _ in signed]


@pytest.mark.parametrize(
    "secret",
    [b"", bytes(32), ORDER.to_bytes(32, "big"), b"\xff" * 32, b"\x01" * 31, b"\x01" * 33],
    ids=["empty", "zero", "the order", "above the order", "31 bytes", "33 bytes"],
)
def test_invalid_private_key_is_refused_and_not_shown(secret):
    with pytest.raises(Refused) as refusal:
        Wallet(secret)
    assert secret.hex() == "" or secret.hex() not in repr(refusal.value)


def test_a_wallet_prints_its_address_and_not_its_key():
    wallet = Wallet(b"\x01" * 32)
    assert repr(wallet) == "Wallet(_secret=<SECRET>, address=0x1a642f0e3c3af545e7acbd38b07251b3990914f1)"


@pytest.mark.parametrize("length", [0, 64, 66])
def test_signature_of_another_length_recovers_no_address(length):
    assert recover_address(bytes(32), b"\x01" * length) is None


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_of_another_length_is_a_mistake_of_the_caller(length):
    wallet = Wallet(b"\x01" * 32)
    with pytest.raises(ValueError, match="32 bytes"):
        wallet.sign(bytes(length))
    with pytest.raises(ValueError, match="32 bytes"):
        recover_address(bytes(length), bytes(65))


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


VECTORS = cases("eip712.json")
DOMAINS = {case["domain_name"]: case["domain"] for case in VECTORS}


@pytest.fixture
def domains():
    return Domains.of(
        AddressBook(
            chain_id=int(DOMAINS["jobs"]["chainId"]),
            deploy_block=0,
            job_registry=raw(DOMAINS["jobs"]["verifyingContract"]),
            provider_registry=raw(DOMAINS["providers"]["verifyingContract"]),
            ask_registry=raw(DOMAINS["asks"]["verifyingContract"]),
            paytoken=raw(DOMAINS["token"]["verifyingContract"]),
            payment_token_decimals=6,
            token_domain=TokenDomain(DOMAINS["token"]["name"], DOMAINS["token"]["version"]),
        )
    )


def test_the_vectors_hold_every_domain():
    assert set(DOMAINS) == {field.name for field in attrs.fields(Domains)}


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_each_domain_of_a_deployment_is_as_in_the_vectors(domains, case):
    assert getattr(domains, case["domain_name"]).separator == raw(case["separator"])


def test_a_message_is_digested_in_its_domain(domains):
    [case] = [case for case in VECTORS if case["name"] == "Cancel, typical"]
    message = Cancel(raw(case["message"]["jobId"]), int(case["message"]["issuedAt"]))
    assert domains.jobs.digest(message) == raw(case["digest"])
    assert domains.jobs.digest(message) != digest(domains.asks.separator, struct_hash(message))


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
