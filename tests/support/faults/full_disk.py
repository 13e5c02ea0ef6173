"""A disk that is full for one process: it cannot write any file, including its log. Needs no privileges."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
