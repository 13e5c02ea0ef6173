import json
from pathlib import Path

import pytest
from eth_account import Account

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc import key_files
from svc.key_files import create_wallet
from svc.profiles import read_variables
from svc.variables import Variables
from svc.wallets import read_signer

_ONE, _TWO = ("0x" + f"{number:064x}" for number in (1, 2))
_ADDRESS = {key: Wallet(bytes.fromhex(key[2:])).address for key in (_ONE, _TWO)}


def variables(environment: dict[str, str]) -> Variables:
    return read_variables({"SVC_CONFIG": "", **environment})


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
    assert read_signer(variables({"SVC_WALLET_KEY": ""})) is None


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"SVC_WALLET_KEY": _ONE, "SVC_WALLET_KEY_FILE": "x"}, "set at the same time"),
        ({"SVC_WALLET_KEY": "0xsecret"}, "must be a valid private key"),
        ({"SVC_WALLET_KEY": "00" * 32}, "must be a valid private key"),
        ({"SVC_WALLET_KEY_FILE": "/nowhere/at/all"}, "No such file"),
    ],
)
def test_key_that_cannot_be_used_is_refused_without_showing_it(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(Refused, match=complaint) as refused:
        read_signer(variables(environment))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", ["0xsecret", "00", "00" * 32])
def test_file_that_holds_no_key_is_named_and_refused_as_a_key(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(Refused, match=r"wallet\.key must contain a valid private key") as refused:
        read_signer(Variables(), file)
    assert refused.value.param == "SVC_WALLET_KEY_FILE"


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660])
def test_file_that_others_can_read_is_refused_with_what_to_do(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(Refused, match=r"only by its owner \(chmod 600 .*wallet\.key\)") as refused:
        read_signer(Variables(), file)
    assert refused.value.param == "SVC_WALLET_KEY_FILE"


def _address(file: Path | None, environment: dict[str, str]) -> bytes:
    wallet = read_signer(variables(environment), file)
    assert wallet is not None
    return wallet.address


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    """A keystore with a password that is cheap to try. The file's author chooses the cost."""
    document = Account.encrypt("0x" + f"{2:064x}", "open sesame", kdf="pbkdf2", iterations=2)
    path = tmp_path / "wallet.json"
    path.write_text(json.dumps(document))
    return path


def test_keystore_opens_by_password_file_or_prompt(keystore: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    password.chmod(0o600)
    known = {"SVC_WALLET_KEY_FILE": str(keystore), "SVC_KEYSTORE_PASSWORD_FILE": str(password)}
    assert _address(None, known) == _ADDRESS[_TWO]
    asked: list[Path] = []

    def ask(path: Path) -> str:
        asked.append(path)
        return "open sesame"

    for environment, file in (({"SVC_WALLET_KEY_FILE": str(keystore)}, None), ({}, keystore)):
        signer = read_signer(variables(environment), file, ask)
        assert signer is not None
        assert signer.address == _ADDRESS[_TWO]
    assert asked == [keystore, keystore]


@pytest.mark.parametrize(
    ("content", "password", "param", "said"),
    [
        (None, "wrong", "SVC_WALLET_KEY_FILE", "cannot be opened"),
        (None, None, "SVC_KEYSTORE_PASSWORD_FILE", "is encrypted: set SVC_KEYSTORE_PASSWORD_FILE"),
        ("{}", "x", "SVC_WALLET_KEY_FILE", "must be a JSON keystore file of version 3"),
    ],
)
def test_keystore_that_does_not_open_is_refused_with_what_to_set(
    keystore: Path, *, content: str | None, password: str | None, param: str, said: str
) -> None:
    if content is not None:
        keystore.write_text(content)
    with pytest.raises(Refused, match=said) as refused:
        read_signer(
            variables({"SVC_WALLET_KEY_FILE": str(keystore)}), None, None if password is None else lambda _: password
        )
    assert refused.value.param == param


def test_password_file_that_others_can_read_is_refused(keystore: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame")
    password.chmod(0o644)
    known = {"SVC_WALLET_KEY_FILE": str(keystore), "SVC_KEYSTORE_PASSWORD_FILE": str(password)}
    with pytest.raises(Refused, match="only by its owner") as refused:
        read_signer(variables(known))
    assert refused.value.param == "SVC_KEYSTORE_PASSWORD_FILE"


def test_encrypted_key_is_written_behind_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        key_files, "encrypt_keystore", lambda key, password: json.dumps(Account.encrypt(key, password, "pbkdf2", 2))
    )
    path = tmp_path / "wallet.json"
    created = create_wallet(path, "open sesame")
    assert "ciphertext" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    signer = read_signer(Variables(), path, lambda _: "open sesame")
    assert signer is not None
    assert signer.address == created.address
