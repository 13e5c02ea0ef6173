from pathlib import Path

import pytest

from common.refusal import Refused
from svc.key_files import create_wallet, read_wallet


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
