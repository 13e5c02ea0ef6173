from concurrent.futures import ThreadPoolExecutor

import pytest
from eth_account import Account
from eth_keys import keys
from eth_keys.exceptions import BadSignature, ValidationError
from eth_utils import decode_hex as raw
from hypothesis import given
from hypothesis import strategies as st

from common.refusal import Refused
from common.secp256k1 import Wallet, recover_address
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


@pytest.mark.parametrize(
    "case",
    REFUSED,
    ids=lambda case: f"{case['refused']}: {case['name']}",
)
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
