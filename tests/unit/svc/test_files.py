import os
import stat
from pathlib import Path

import pytest

from svc.protected_files import open_atomic


def test_file_appears_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with open_atomic(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["result.json"]


def test_unfinished_file_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"before")

    def write_half() -> None:
        with open_atomic(path) as file:
            file.write(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["result.json"]


def test_link_that_lies_in_wait_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "result.json"
    victim.write_bytes(b"untouched")
    for name in ("result.json.partial", ".result.json.partial"):  # predictable names
        (tmp_path / name).symlink_to(victim)
    with open_atomic(path) as file:
        file.write(b"whole")
    assert (path.read_bytes(), victim.read_bytes()) == (b"whole", b"untouched")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")  # even a known name
    (tmp_path / ".result.json.known.partial").symlink_to(victim)
    with pytest.raises(FileExistsError), open_atomic(path):
        pass
    assert victim.read_bytes() == b"untouched"
