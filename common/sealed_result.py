"""Seal and open results, version 1. The provider seals a result to the owner's result key and binds it to the job.

    sealed result = 0x01 ‖ seed_wrap (80) ‖ ciphertext (41 or more)

The layout is the same as a container's. The ciphertext's key is bound to the job id instead of the owner, so a provider
cannot settle one job with the result of another. A result has no commitment, but is identified by its content id.
"""

from typing import Self

from common.box import PublicKey, SecretKey
from common.framing import Piece
from common.key_derivation import result_data_key
from common.sealed_stream import StreamOpener, StreamSealer


class ResultSealer(StreamSealer):
    """Seal a result piece by piece to the result key in the job's envelope."""

    def __init__(self, result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes) -> None:
        super().__init__(result_key, lambda seed: result_data_key(seed, chain_id, job_registry, job_id))


class ResultOpener(StreamOpener):
    """Open a sealed result piece by piece."""

    @classmethod
    def with_secret(cls, secret: SecretKey, chain_id: int, job_registry: bytes, job_id: bytes) -> Self:
        """Open with the owner's result key. Refuse a result that is sealed to another key as `unseal_failed`."""
        return cls(lambda head: result_data_key(head.open_seed(secret), chain_id, job_registry, job_id))


def seal_result(result_key: PublicKey, chain_id: int, job_registry: bytes, job_id: bytes, plaintext: Piece) -> bytes:
    sealer = ResultSealer(result_key, chain_id, job_registry, job_id)
    return sealer.push(plaintext) + sealer.finish()


def open_result(secret: SecretKey, chain_id: int, job_registry: bytes, job_id: bytes, sealed: Piece) -> bytes:
    opener = ResultOpener.with_secret(secret, chain_id, job_registry, job_id)
    return opener.pull(sealed) + opener.finish()
