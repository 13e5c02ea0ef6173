"""Signers in other processes, signing programs, and key files: their input, and which outputs are accepted."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from eth_account import Account

from common.messages.jobs import Cancel
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svc.core.typed_data import SigningRequest, build_signing_request
from svc.errors import OrderRefused, SigningFailed
from svc.key_files import create_wallet, read_wallet
from svc.profiles import read_variables
from svc.settings import Settings
from svc.signers import LocalSigner, RemoteSigner
from svc.wallets import read_signer
from tests.unit.svc.core.test_orders import DOMAINS
from tests.unit.svc.fake_coordinator import CANDIDATE, WALLET, Answer, FakeCoordinator

KEY = bytes(31) + b"\x07"
SIGNING_WALLET = Wallet(KEY)
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture
def asked() -> SigningRequest:
    return build_signing_request("cancellation", DOMAINS.jobs, Cancel(bytes(32), 5))


def upper_half(signature: bytes) -> bytes:
    s = ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes((55 - signature[64],))


async def asynchronous(digest: bytes) -> bytes:
    return SIGNING_WALLET.sign(digest)


@pytest.mark.parametrize(
    "by_digest",
    [
        SIGNING_WALLET.sign,
        asynchronous,
        lambda digest: hex_of(SIGNING_WALLET.sign(digest)),
        lambda digest: SIGNING_WALLET.sign(digest)[:64] + bytes((SIGNING_WALLET.sign(digest)[64] - 27,)),
        lambda digest: upper_half(SIGNING_WALLET.sign(digest)),
    ],
    ids=["bytes", "awaited", "hex", "v of 0 or 1", "high s"],
)
async def test_signature_spellings_are_normalised(asked: SigningRequest, by_digest: Callable[[bytes], Any]) -> None:
    signer = RemoteSigner(SIGNING_WALLET.address, by_digest=by_digest)
    assert await signer.sign(asked) == await LocalSigner(SIGNING_WALLET).sign(asked)


async def test_wallet_that_takes_typed_data_signs_the_same(asked: SigningRequest) -> None:
    def by_typed_data(data: dict[str, Any]) -> bytes:
        return bytes(Account.sign_typed_data(KEY, full_message=data).signature)

    signer = RemoteSigner(SIGNING_WALLET.address, by_typed_data=by_typed_data)
    assert await signer.sign(asked) == SIGNING_WALLET.sign(asked.digest)


def refuses(_: bytes) -> bytes:
    raise RuntimeError("the person said no")


@pytest.mark.parametrize(
    "by_digest",
    [
        refuses,
        Wallet(bytes(31) + b"\x08").sign,
        lambda digest: SIGNING_WALLET.sign(bytes(32)),
        lambda digest: b"",
        lambda digest: "0xzz",
        lambda digest: SIGNING_WALLET.sign(digest)[:64] + b"\x25",
        lambda digest: bytes(65),
    ],
    ids=["refusal", "another's", "of something else", "empty", "no hex", "odd v", "zeros"],
)
async def test_invalid_signature_is_never_used(asked: SigningRequest, by_digest: Callable[[bytes], Any]) -> None:
    with pytest.raises(SigningFailed, match=r"cancellation|signature"):
        await RemoteSigner(SIGNING_WALLET.address, by_digest=by_digest).sign(asked)


def test_remote_signer_is_asked_in_one_way() -> None:
    with pytest.raises(TypeError):
        RemoteSigner(SIGNING_WALLET.address)


SIGNS = """
import json, sys
from eth_account import Account
asked = json.load(sys.stdin)
open({seen!r}, "w").write(json.dumps(asked))
print("0x" + Account.from_key({key!r}).sign_typed_data(full_message=asked).signature.hex().removeprefix("0x"))
"""


def program(folder: Path, text: str) -> str:
    path = folder / "sign here.py"
    path.write_text(text)
    return shlex.join([sys.executable, str(path)])


def environment(command: str) -> dict[str, str]:
    return {"SVC_CONFIG": "", "SVC_SIGNER_COMMAND": command, "SVC_WALLET_ADDRESS": hex_of(WALLET.address)}


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator({"POST /v1/jobs": [Answer(402, {"candidates": [CANDIDATE]})]})


def signer_of(command: str) -> RemoteSigner:
    """Return the program's signer, which derives a key for results from its signatures."""
    signer = read_signer(read_variables(environment(command)))
    assert isinstance(signer, RemoteSigner)
    return attrs.evolve(signer, deterministic=True)


async def test_program_is_given_the_order_as_eip_712_json_and_signs_it(
    tmp_path: Path, coordinator: FakeCoordinator
) -> None:
    command = program(tmp_path, SIGNS.format(seen=str(tmp_path / "seen"), key="0x" + "00" * 31 + "01"))
    signer = signer_of(command)
    prepared = await coordinator.client(wallet_key=None, signer=signer).prepare("demo/text", "hi", window="1h")
    locally = await coordinator.client().prepare("demo/text", "hi", window="1h")
    assert prepared.sealed_order.owner == locally.sealed_order.owner == WALLET.address
    asked = json.loads((tmp_path / "seen").read_text())
    assert (asked["primaryType"], asked["message"]["designated"]) == ("Order", "7")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(3)", "failed with exit code 3"),
        ("print('no')", "must print a signature: 65 bytes as 0x-hex"),
        ("print('0x' + '11' * 65)", "does not match the wallet's address"),
    ],
)
async def test_program_without_a_valid_signature_is_refused(
    tmp_path: Path, coordinator: FakeCoordinator, text: str, said: str
) -> None:
    signer = signer_of(program(tmp_path, text))
    with pytest.raises(SigningFailed, match=said):
        await coordinator.client(wallet_key=None, signer=signer).prepare("demo/text", "hi", window="1h")


async def test_program_that_is_not_there_is_named(tmp_path: Path, coordinator: FakeCoordinator) -> None:
    signer = read_signer(read_variables(environment(str(tmp_path / "none"))))
    with pytest.raises(OrderRefused, match="set SVC_CIPHER_KEY"):
        await coordinator.client(wallet_key=None, signer=signer).prepare("demo/text", "hi", window="1h")
    signer = signer_of(str(tmp_path / "none"))
    with pytest.raises(SigningFailed, match=r"SVC_SIGNER_COMMAND: .*none: No such file"):
        await coordinator.client(wallet_key=None, signer=signer).prepare("demo/text", "hi", window="1h")


@pytest.mark.parametrize(
    ("known", "param"),
    [
        ({"SVC_SIGNER_COMMAND": "sign"}, "SVC_WALLET_ADDRESS"),
        ({"SVC_SIGNER_COMMAND": "sign", "SVC_WALLET_ADDRESS": "0x12"}, "SVC_WALLET_ADDRESS"),
        ({"SVC_SIGNER_COMMAND": "sign '"}, "SVC_SIGNER_COMMAND"),
        ({"SVC_SIGNER_COMMAND": "sign", "SVC_WALLET_KEY": "11" * 32}, "SVC_WALLET_KEY"),
    ],
)
def test_setting_that_is_missing_or_doubled_is_named(known: dict[str, str], param: str) -> None:
    with pytest.raises(Refused) as refused:
        read_signer(read_variables(known))
    assert refused.value.param == param


def test_settings_have_the_wallet_of_the_program() -> None:
    signer = Settings.resolve(environment=environment("sign")).signer
    assert signer is not None
    assert (signer.address, signer.deterministic) == (WALLET.address, False)
    assert Settings.resolve(environment=environment("sign"), wallet_key="22" * 32).signer != signer
    assert Wallet(b"\x22" * 32).address != signer.address


def test_created_key_round_trips_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "wallet.key"
    created = create_wallet(path)
    assert read_wallet(path).address == created.address
    assert path.stat().st_mode & 0o777 == 0o600


def test_existing_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "wallet.key"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        create_wallet(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("text", ["", "zz", "0x" + "00" * 32, "ff" * 32, "11" * 31, "é" * 64])
def test_file_that_holds_no_private_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wallet.key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(Refused, match="must contain a valid private key"):
        read_wallet(path)
