from pathlib import Path

import pytest

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.wallets import signer_of

_ONE, _TWO = ("0x" + f"{number:064x}" for number in (1, 2))
_ADDRESS = {key: Wallet(bytes.fromhex(key[2:])).address for key in (_ONE, _TWO)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.key"
    path.write_text(_TWO + "\n")
    path.chmod(0o600)
    return path


def test_named_file_wins_over_the_environment(file: Path) -> None:
    assert _address(file, {"SVC_WALLET_KEY": _ONE}) == _ADDRESS[_TWO]


def test_environment_gives_the_key_or_the_file_that_holds_it(file: Path) -> None:
    assert _address(None, {"SVC_WALLET_KEY": _ONE, "SVC_WALLET_KEY_FILE": ""}) == _ADDRESS[_ONE]
    assert _address(None, {"SVC_WALLET_KEY_FILE": str(file)}) == _ADDRESS[_TWO]


def test_no_key_anywhere_is_no_wallet() -> None:
    assert signer_of({"SVC_WALLET_KEY": ""}) is None


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"SVC_WALLET_KEY": _ONE, "SVC_WALLET_KEY_FILE": "x"}, "both set"),
        ({"SVC_WALLET_KEY": "0xsecret"}, "does not hold a private key"),
        ({"SVC_WALLET_KEY": "00" * 32}, "does not hold a private key"),
        ({"SVC_WALLET_KEY_FILE": "/nowhere/at/all"}, "No such file"),
    ],
)
def test_key_that_cannot_be_used_is_refused_without_showing_it(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint) as refused:
        signer_of(environment)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", ["0xsecret", "00", "00" * 32])
def test_file_that_holds_no_key_is_named_and_refused_as_a_key(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(Refused, match=r"wallet\.key does not hold a private key") as refused:
        signer_of({}, file)
    assert refused.value.param == "SVC_WALLET_KEY_FILE"


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660])
def test_file_that_others_can_read_is_refused_with_what_to_do(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(Refused, match=r"owner alone \(chmod 600 .*wallet\.key\)") as refused:
        signer_of({}, file)
    assert refused.value.param == "SVC_WALLET_KEY_FILE"


def _address(file: Path | None, environment: dict[str, str]) -> bytes:
    wallet = signer_of(environment, file)
    assert wallet is not None
    return wallet.address
