"""Sealing, committing, hashing and opening 200 MiB takes no more memory than doing so with a few MiB."""

import subprocess
import sys

MIB = 1 << 20

# Run every step of a payload in one process that reports its own peak memory.
PASS = """
import re
from collections.abc import Iterator
from pathlib import Path

from common.box import SecretKey
from common.cid import UnixFsHasher
from common.container import CommitmentHasher, Opener, Sealer

MIB = 1 << 20
secret, place = SecretKey(bytes(range(32))), (1, bytes(20), bytes(20))


def peak() -> int:
    # not getrusage: a new process starts with its parent's ru_maxrss, which would hide growth below it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])


def sealed(payload: Iterator[bytes]) -> Iterator[bytes]:
    sealer = Sealer(secret.public, *place)
    for piece in payload:
        yield sealer.push(piece)
    yield sealer.finish()


before = peak()
opener, commitment, cid, opened = Opener.with_secret(secret, *place), CommitmentHasher(), UnixFsHasher(), 0
for piece in sealed(bytes(MIB) for _ in range(200)):
    commitment.update(piece)
    cid.update(piece)
    opened += len(opener.pull(piece))
opened += len(opener.finish())
commitment.finish()
cid.finish()
print(opened, peak() - before)
"""


def test_two_hundred_mib_pass_in_constant_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PASS], capture_output=True, text=True, check=True)
    opened, grown = map(int, done.stdout.split())
    assert opened == 200 * MIB
    assert grown <= 32 * MIB
