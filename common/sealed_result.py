"""Sealed result v1: a provider's result, sealed to the owner's result key and bound to its job.

    sealed result = 0x01 ‖ seed_wrap (80) ‖ ciphertext (41 or more)

The layout is a container's. The ciphertext's key is bound to the job id instead of the owner, so a provider cannot
settle one job with another's result. A result carries no commitment: its content id identifies it.
"""

from typing import Self

from common.box import PublicKey, SecretKey
from common.framing import Piece
from common.key_derivation import result_data_key
from common.sealed_stream import StreamOpener, StreamSealer


class ResultSealer(StreamSealer):
    """Seals a result to the key that the job's envelope names, piece by piece."""

    def __init__(self, result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes) -> None:
        super().__init__(result_key, lambda seed: result_data_key(seed, chain_id, job_registry, job_id))


class ResultOpener(StreamOpener):
    """Opens a sealed result piece by piece."""

    @classmethod
    def with_secret(cls, secret: SecretKey, chain_id: int, job_registry: bytes, job_id: bytes) -> Self:
        """With the owner's result key; refuses a result sealed to another as `unseal_failed`."""
        return cls(lambda head: result_data_key(head.open_seed(secret), chain_id, job_registry, job_id))


def seal_result(result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes, plaintext: Piece) -> bytes:
    sealer = ResultSealer(result_key, chain_id, job_registry, job_id)
    return sealer.push(plaintext) + sealer.finish()


def open_result(secret: SecretKey, chain_id: int, job_registry: bytes, job_id: bytes, sealed: Piece) -> bytes:
    opener = ResultOpener.with_secret(secret, chain_id, job_registry, job_id)
    return opener.pull(sealed) + opener.finish()
