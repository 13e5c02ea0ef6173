"""Struct that an owner signs for the payment token (EIP-3009)."""

from struct import Struct
from typing import ClassVar, Final

from attrs import frozen

from common.keccak import keccak256
from common.messages.fields import address, bytes32, refuse_misfit, told, uint256

_AUTHORIZATION: Final = Struct(">32s 12x20s 12x20s 32s 32s 32s 32s")


@frozen(slots=True)
class ReceiveWithAuthorization:
    """Lets `to`, and nobody else, collect exactly `value` once, strictly between the two times."""

    TYPE: ClassVar[str] = (
        "ReceiveWithAuthorization(address from,address to,uint256 value,"
        "uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    )
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    from_: bytes = told(address)
    to: bytes = told(address)
    value: int = told(uint256)
    valid_after: int = told(uint256)
    valid_before: int = told(uint256)
    nonce: bytes = told(bytes32)

    def __attrs_post_init__(self) -> None:
        if (
            (self.value | self.valid_after | self.valid_before) >> 256
            or len(self.from_) != 20
            or len(self.to) != 20
            or len(self.nonce) != 32
        ):
            refuse_misfit(self)

    def packed(self) -> bytes:
        return _packed((self.from_, self.to), self.value, (self.valid_after, self.valid_before), self.nonce)


def _packed(between: tuple[bytes, bytes], value: int, window: tuple[int, int], nonce: bytes) -> bytes:
    (from_, to), (valid_after, valid_before) = between, window
    return _AUTHORIZATION.pack(
        ReceiveWithAuthorization.TYPE_HASH,
        from_,
        to,
        value.to_bytes(32, "big"),
        valid_after.to_bytes(32, "big"),
        valid_before.to_bytes(32, "big"),
        nonce,
    )


def _job_window(expires_at: int) -> tuple[int, int]:
    return 0, expires_at + 1


def job_payment(owner: bytes, registry: bytes, amount: int, expires_at: int, job_id: bytes) -> ReceiveWithAuthorization:
    """The one authorisation that pays for a job.

    Its nonce is the job id, so that it pays for no other job; it outlives the order by a second, so that a
    claim in the order's last second is still paid.
    """
    valid_after, valid_before = _job_window(expires_at)
    return ReceiveWithAuthorization(owner, registry, amount, valid_after, valid_before, job_id)


def packed_job_payment(owner: bytes, registry: bytes, amount: int, expires_at: int, job_id: bytes) -> bytes:
    """The same as it is hashed, for whoever checks one for every line of a batch: it costs a third. The values are
    those of an order and of its quote, which fit."""
    return _packed((owner, registry), amount, _job_window(expires_at), job_id)
