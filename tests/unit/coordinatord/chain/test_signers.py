import json
from pathlib import Path

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address as checksum

from common.daemon.process import Fatal
from common.transactions import Transaction
from coordinatord.chain.signing.keystores import create_keystore, load_key_file, load_keystore, read_keystore_password
from coordinatord.chain.signing.signers import LocalKey, SigningProgram, parse_signing_program, rpc_transaction

KEY = bytes(31) + b"\x07"
ADDRESS = Account.from_key(KEY).address
CALL = Transaction(31337, 3, 10, 99, 50_000, bytes(range(20)), 0, b"\x01\x02")
DEPLOYMENT = CALL._replace(to=None)


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# --- files ---


def test_keystore_opens_with_its_password_and_with_no_other(tmp_path: Path) -> None:
    path = private(tmp_path / "k", json.dumps(Account.encrypt(KEY, "right", kdf="pbkdf2", iterations=2)))
    assert load_keystore(path, lambda: "right").address == ADDRESS
    with pytest.raises(Fatal, match="cannot be opened: wrong password"):
        load_keystore(path, lambda: "wrong")


@pytest.mark.parametrize("text", ["", "no json", "{}", "[1]", '{"version": 3}', '{"version": 9, "crypto": {}}'])
def test_file_that_is_no_keystore_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Fatal, match=r"must be a JSON keystore file|cannot be opened"):
        load_keystore(private(tmp_path / "k", text), lambda: "p")


def test_new_keystore_is_its_owners_alone_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    address = create_keystore(path, "word")
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keystore(path, lambda: "word").address == address
    with pytest.raises(Fatal, match="File exists"):
        create_keystore(path, "word")
    with pytest.raises(Fatal, match="must not be empty"):
        create_keystore(tmp_path / "other", "")


@pytest.mark.parametrize("text", [KEY.hex(), f"0x{KEY.hex()}\n"])
def test_key_file_holds_one_key(tmp_path: Path, text: str) -> None:
    key = load_key_file(private(tmp_path / "k", text))
    assert key.address == ADDRESS
    assert KEY.hex() not in repr(key)


@pytest.mark.parametrize("text", ["", "0x12", "zz" * 32, "00" * 32])
def test_file_that_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Fatal, match="must contain one private key of 32 bytes in hex"):
        load_key_file(private(tmp_path / "k", text))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_file_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "k", KEY.hex(), mode)
    with pytest.raises(Fatal, match=f"it has mode {mode:04o}; run `chmod 600"):
        load_key_file(path)


def test_password_sources_have_a_fixed_order(tmp_path: Path) -> None:
    private(tmp_path / "market_keystore_password", "of systemd\n", 0o400)
    environ = {"MARKET_KEYSTORE_PASSWORD": "of the variable", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_keystore_password(private(tmp_path / "p", "of the file\n"), environ) == "of the file"
    assert read_keystore_password(None, environ) == "of the variable"
    assert read_keystore_password(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == "of systemd"


# --- programs ---


def signed(transaction: Transaction, key: bytes = KEY, **changes: object) -> str:
    """Sign with another implementation that takes the same JSON."""
    fields = rpc_transaction(transaction, ADDRESS)
    del fields["from"]
    return str(Account.from_key(key).sign_transaction(fields | changes).raw_transaction.to_0x_hex())


def program(tmp_path: Path, output: str, status: int = 0) -> SigningProgram:
    """Return a signing program that appends its input to `asked` and prints `output`."""
    script = tmp_path / "sign.sh"
    script.write_text(f"cat > '{tmp_path}/asked'\necho '{output}'\nexit {status}\n")
    return parse_signing_program(f"sh '{script}'", ADDRESS)


@pytest.mark.parametrize("transaction", [CALL, DEPLOYMENT])
def test_program_is_asked_in_json_and_its_signed_bytes_are_taken(tmp_path: Path, transaction: Transaction) -> None:
    raw = program(tmp_path, signed(transaction)).sign(transaction)
    assert raw == LocalKey.from_key(KEY).sign(transaction)
    assert json.loads((tmp_path / "asked").read_text()) == rpc_transaction(transaction, ADDRESS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"to": "0x" + "99" * 20}, "requested: to differs"),
        ({"data": "0x"}, "requested: data differs"),
        ({"value": "0x1"}, "requested: value differs"),
        ({"nonce": "0x4"}, "requested: nonce differs"),
        ({"gas": "0xc351"}, "requested: gas differs"),
        ({"chainId": "0x1"}, "requested: chainId differs"),
        ({"maxFeePerGas": "0x64"}, "requested: maxFeePerGas differs"),
        ({"maxPriorityFeePerGas": "0x1"}, "requested: maxPriorityFeePerGas differs"),
        ({"accessList": [{"address": "0x" + "99" * 20, "storageKeys": []}]}, "it has an access list"),
    ],
)
def test_program_that_signs_other_data_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(Fatal, match=said):
        program(tmp_path, signed(CALL, **change)).sign(CALL)


def test_program_with_another_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=f"signed as 0x.*, not as {ADDRESS}"):
        program(tmp_path, signed(CALL, key=bytes(31) + b"\x08")).sign(CALL)


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        ("", 3, "ended with status 3 and signed nothing"),
        ("what?", 0, "must print the signed transaction in hex"),
        ("", 0, "must print the signed transaction in hex"),
        ("0x", 0, "must answer with a signed transaction of type 2"),
        ("0x02", 0, "must answer with a signed transaction of type 2"),
        ("0x02c0", 0, "must answer with a signed transaction of type 2"),
    ],
)
def test_program_that_signs_nothing_is_refused(tmp_path: Path, output: str, status: int, said: str) -> None:
    with pytest.raises(Fatal, match=said):
        program(tmp_path, output, status).sign(CALL)


def test_program_that_is_not_there_is_named() -> None:
    with pytest.raises(Fatal, match="--signer /no/such cannot be run: No such file"):
        parse_signing_program("/no/such --flag", ADDRESS).sign(CALL)
    with pytest.raises(Fatal, match="must name a program"):
        parse_signing_program("  ", ADDRESS)


def test_transaction_uses_eth_sign_transaction_names() -> None:
    told = rpc_transaction(CALL, ADDRESS)
    assert told["to"] == checksum(bytes(range(20)))
    assert (told["type"], told["nonce"], told["gas"], told["data"]) == ("0x2", "0x3", "0xc350", "0x0102")
    assert "to" not in rpc_transaction(DEPLOYMENT, ADDRESS)
