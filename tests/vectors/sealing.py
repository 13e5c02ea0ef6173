"""Containers and streams built from libsodium's primitives, with chosen randomness, as the vectors were made."""

from nacl import bindings

REGISTRY = bytes.fromhex("5fbdb2315678afecb367f032d93f642f64180aa3")
OWNER = bytes.fromhex("70997970c51812dc3a010c7d01b50e0d17dc79c8")
STRANGER = bytes.fromhex("3c44cdddb6a900fa2b585dd299e03d12fa4293bc")
MESSAGE, PUSH, FINAL = 0, 1, 3


def stream(key: bytes, header: bytes, frames: list[tuple[bytes, int]]) -> bytes:
    """Return a secretstream with a given header. libsodium's two init functions differ only in who chooses the
    header."""
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, header, key)
    push = bindings.crypto_secretstream_xchacha20poly1305_push
    return header + b"".join(push(state, plaintext, None, tag) for plaintext, tag in frames)


def framed(plaintext: bytes) -> list[tuple[bytes, int]]:
    cut = [plaintext[at : at + 65_536] for at in range(0, len(plaintext), 65_536)] or [b""]
    return [(frame, MESSAGE) for frame in cut[:-1]] + [(cut[-1], FINAL)]
