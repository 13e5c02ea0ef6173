"""Wallets behind a signing program: the program's input, and which outputs are accepted."""

import json
import shlex
import sys
from pathlib import Path

import attrs
import pytest

from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svc.errors import OrderRefused, SigningFailed
from svc.profiles import read_variables
from svc.settings import Settings
from svc.signers import RemoteSigner
from svc.wallets import read_signer
from tests.unit.svc.fake_coordinator import CANDIDATE, WALLET, Answer, FakeCoordinator

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
