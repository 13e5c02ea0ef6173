import os
from pathlib import Path

import click
import pytest

from svc.cli.destinations import open_output


def test_file_appears_once_it_is_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open_output(path) as file:
        file.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_that_cannot_be_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"), open_output(tmp_path / "no" / "out"):
        pytest.fail("the block must not begin")


def test_links_and_pipes_are_written_through(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"before")
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        with open_output(path) as file:
            file.write(b"after")
    assert (target.read_bytes(), link.is_symlink()) == (b"after", True)
    assert (os.read(reader, 10), pipe.is_fifo()) == (b"after", True)
    os.close(reader)


def test_planted_link_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "out.partial").symlink_to(victim)
    with open_output(tmp_path / "out") as file:
        file.write(b"all of it")
    assert victim.read_bytes() == b"precious"


def test_nothing_is_left_of_a_block_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), open_output(tmp_path / "out"):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []
