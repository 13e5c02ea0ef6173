"""One seed decides the order in which trio runs ready tasks, and every byte of keys and seals. Threads run immediately.
`Moments` sees each step, so a kill can occur between any two.

Ciphertexts are deterministic too. libsodium has an internal random source, so the two calls that use it are rebuilt
here from calls that take their randomness as arguments. The unchanged functions open the result.
"""

import gc
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar
from unittest.mock import patch

import trio
from nacl import bindings
from trio._core import _run as trio_run

from common import framing

T = TypeVar("T")
BEFORE_DISK: Final = "a thread's work begins"
AFTER_DISK: Final = "a thread's work is done"
_PROCESSORS: Final = 2  # fixed, because the number of workers depends on it
_NONCE_BYTES: Final = 24


class SeededBytes:
    """Return any number of bytes from a seed."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(f"bytes {seed}")

    def __call__(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def sealed_box(self, plaintext: bytes, public: bytes) -> bytes:
        """Replaces `crypto_box_seal` with an ephemeral key from the seed."""
        secret = self(bindings.crypto_box_SECRETKEYBYTES)
        ephemeral = bindings.crypto_scalarmult_base(secret)
        nonce = hashlib.blake2b(ephemeral + public, digest_size=_NONCE_BYTES).digest()
        return ephemeral + bindings.crypto_box(plaintext, nonce, public, secret)

    def stream_header(self, state: Any, key: bytes) -> bytes:
        """Replaces `init_push` with a header from the seed. Pushing and pulling begin in the same state."""
        header = self(framing.HEADER_BYTES)
        bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, header, key)
        return header


@contextmanager
def seeded(seed: object, moment: Callable[[str], None]) -> Iterator[None]:
    """Make the code in the block deterministic. `moment` is called before and after the work of each thread."""
    draw = SeededBytes(seed)

    async def run_sync(act: Callable[..., T], *arguments: Any, **_: object) -> T:
        await trio.lowlevel.checkpoint()
        moment(BEFORE_DISK)
        result = act(*arguments)
        moment(AFTER_DISK)
        return result

    with ExitStack() as stack:
        for target, name, stand_in in (
            (os, "urandom", draw),
            (random, "_urandom", draw),  # random source of `secrets`
            (os, "cpu_count", lambda: _PROCESSORS),
            (bindings, "crypto_box_seal", draw.sealed_box),
            (framing, "crypto_secretstream_xchacha20poly1305_init_push", draw.stream_header),
            (trio.to_thread, "run_sync", run_sync),
            (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        ):
            stack.enter_context(patch.object(target, name, stand_in))
        state, ours = random.getstate(), trio_run._r.getstate()
        random.seed(f"jitter {seed}")
        trio_run._r.seed(f"turns {seed}")
        # Garbage collection closes generators, which takes steps of the loop, and its timing does not follow the seed.
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            random.setstate(state)
            trio_run._r.setstate(ours)
