from pathlib import Path

import pytest

from common.box import SecretKey
from common.secp256k1 import Wallet
from svcd.base.keys import BOX_KEY_FILE, WALLET_FILE, create_identity


def test_created_keys_match_the_identity_and_are_private(tmp_path: Path) -> None:
    identity = create_identity(tmp_path / "keys")
    wallet, box = (
        bytes.fromhex((tmp_path / "keys" / name).read_text().strip().removeprefix("0x"))
        for name in (WALLET_FILE, BOX_KEY_FILE)
    )
    assert Wallet(wallet).address == identity.operator
    assert SecretKey(box).public == identity.box_key
    assert {(tmp_path / "keys" / name).stat().st_mode & 0o777 for name in (WALLET_FILE, BOX_KEY_FILE)} == {0o600}


@pytest.mark.parametrize("name", [WALLET_FILE, BOX_KEY_FILE])
def test_one_existing_key_file_keeps_both_from_being_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(FileExistsError):
        create_identity(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"
