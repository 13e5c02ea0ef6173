"""Full disks: for one process, which needs no privileges, or as a small file system."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Keep the process from writing any file, including its log."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def mounted_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Mount a file system of this size if this machine allows it."""
    mount = ("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder))
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a file system of its own takes the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(("umount", str(folder)), check=True)


def fill(ballast: Path) -> None:
    """Fill all free space."""
    with suppress(OSError), ballast.open("wb", buffering=0) as filling:
        while filling.write(bytes(4096)) == 4096:
            pass
