from collections.abc import Callable
from typing import Any

import pytest
from eth_account import Account

from common.messages.jobs import Cancel
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svc.core.typed_data import SigningRequest, build_signing_request
from svc.errors import SigningFailed
from svc.signers import LocalSigner, RemoteSigner
from tests.unit.svc.core.test_orders import DOMAINS

KEY = bytes(31) + b"\x07"
WALLET = Wallet(KEY)
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture
def asked() -> SigningRequest:
    return build_signing_request("cancellation", DOMAINS.jobs, Cancel(bytes(32), 5))


def upper_half(signature: bytes) -> bytes:
    s = ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes((55 - signature[64],))


async def asynchronous(digest: bytes) -> bytes:
    return WALLET.sign(digest)


@pytest.mark.parametrize(
    "by_digest",
    [
        WALLET.sign,
        asynchronous,
        lambda digest: hex_of(WALLET.sign(digest)),
        lambda digest: WALLET.sign(digest)[:64] + bytes((WALLET.sign(digest)[64] - 27,)),
        lambda digest: upper_half(WALLET.sign(digest)),
    ],
    ids=["bytes", "awaited", "hex", "v of 0 or 1", "high s"],
)
async def test_signature_spellings_are_normalised(asked: SigningRequest, by_digest: Callable[[bytes], Any]) -> None:
    signer = RemoteSigner(WALLET.address, by_digest=by_digest)
    assert await signer.sign(asked) == await LocalSigner(WALLET).sign(asked)


async def test_wallet_that_takes_typed_data_signs_the_same(asked: SigningRequest) -> None:
    def by_typed_data(data: dict[str, Any]) -> bytes:
        return bytes(Account.sign_typed_data(KEY, full_message=data).signature)

    signer = RemoteSigner(WALLET.address, by_typed_data=by_typed_data)
    assert await signer.sign(asked) == WALLET.sign(asked.digest)


def refuses(_: bytes) -> bytes:
    raise RuntimeError("the person said no")


@pytest.mark.parametrize(
    "by_digest",
    [
        refuses,
        Wallet(bytes(31) + b"\x08").sign,
        lambda digest: WALLET.sign(bytes(32)),
        lambda digest: b"",
        lambda digest: "0xzz",
        lambda digest: WALLET.sign(digest)[:64] + b"\x25",
        lambda digest: bytes(65),
    ],
    ids=["refusal", "another's", "of something else", "empty", "no hex", "odd v", "zeros"],
)
async def test_invalid_signature_is_never_used(asked: SigningRequest, by_digest: Callable[[bytes], Any]) -> None:
    with pytest.raises(SigningFailed, match=r"cancellation|signature"):
        await RemoteSigner(WALLET.address, by_digest=by_digest).sign(asked)


def test_remote_signer_is_asked_in_one_way() -> None:
    with pytest.raises(TypeError):
        RemoteSigner(WALLET.address)
