import os
from pathlib import Path

import click
import pytest

from svc.cli.destinations import open_output


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
