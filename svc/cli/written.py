"""Files that a command writes: whole or not at all, and for their owner alone, since it was sealed until now."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import click

from svc.whole_file import appearing


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """The file to write to. Where there can be none is a mistake of the command line, found before the block begins."""
    with ExitStack() as opened:
        try:
            target = opened.enter_context(appearing(path))
        except OSError as trouble:
            raise not_writable(path, trouble) from None
        yield target


def not_writable(path: Path, trouble: OSError) -> click.UsageError:
    return click.UsageError(f"{path}: {trouble.strerror}")
