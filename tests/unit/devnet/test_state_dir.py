import errno
import shutil
from pathlib import Path

import pytest

from devnet.errors import DevnetError
from devnet.state_dir import claim_state_dir


def test_second_claim_names_the_process_that_holds_the_directory(tmp_path: Path) -> None:
    with (
        claim_state_dir(tmp_path / "state"),
        pytest.raises(DevnetError, match=r"process \d+"),
        claim_state_dir(tmp_path / "state"),
    ):
        pass


def test_directory_of_a_dead_run_is_emptied_and_said_so(tmp_path: Path) -> None:
    with claim_state_dir(tmp_path) as first:
        assert not first.removed_leftovers
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "stale").touch()
    (tmp_path / "devnet.json").touch()
    with claim_state_dir(tmp_path) as second:
        assert second.removed_leftovers
        assert list(second.postgres.iterdir()) == []
        assert not second.manifest.exists()


def test_directory_of_a_dead_run_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claim_state_dir(tmp_path):
        pass
    (tmp_path / "postgres").mkdir()
    remove, came_between = shutil.rmtree, []

    def interrupted(path: Path, **options: bool) -> None:
        if path.name == "postgres" and not came_between:
            came_between.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with claim_state_dir(tmp_path) as state:
        assert came_between == [state.postgres]
        assert list(state.postgres.iterdir()) == []


def test_full_disk_is_refused_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = shutil.disk_usage(tmp_path)._replace(free=5 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: left)
    with pytest.raises(DevnetError, match=r"the disk of .* has 5 MiB free.*--state-dir"), claim_state_dir(tmp_path):
        pass


def test_only_logs_are_left_after_a_run(tmp_path: Path) -> None:
    with claim_state_dir(tmp_path) as state:
        (state.anvil / "chain").touch()
        state.manifest.touch()
        (state.logs / "anvil.log").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "logs"]
    assert (tmp_path / "logs" / "anvil.log").exists()


def test_directory_that_holds_foreign_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "precious").touch()
    with pytest.raises(DevnetError, match="no devnet created"), claim_state_dir(tmp_path):
        pass
    assert (tmp_path / "postgres" / "precious").exists()


def test_uncreatable_directory_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(DevnetError, match=r"cannot use .*file/state .*--state-dir"),
        claim_state_dir(tmp_path / "file" / "state"),
    ):
        pass
