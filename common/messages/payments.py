"""Payment authorization (EIP-3009) with which an owner pays for a job."""

from struct import Struct
from typing import ClassVar, Final

from attrs import frozen

from common.keccak import keccak256
from common.messages.fields import address, bytes32, checked_by_class, raise_invalid_field, uint256

_AUTHORIZATION_LAYOUT: Final = Struct(">32s 12x20s 12x20s 32s 32s 32s 32s")


@frozen(slots=True)
class ReceiveWithAuthorization:
    """Authorization for `to` to collect exactly `value` once, after `valid_after` and before `valid_before`."""

    TYPE: ClassVar[str] = (
        "ReceiveWithAuthorization(address from,address to,uint256 value,"
        "uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    )
    TYPE_HASH: ClassVar[bytes] = keccak256(TYPE.encode("ascii"))

    from_: bytes = checked_by_class(address)
    to: bytes = checked_by_class(address)
    value: int = checked_by_class(uint256)
    valid_after: int = checked_by_class(uint256)
    valid_before: int = checked_by_class(uint256)
    nonce: bytes = checked_by_class(bytes32)

    def __attrs_post_init__(self) -> None:
        if (
            (self.value | self.valid_after | self.valid_before) >> 256
            or len(self.from_) != 20
            or len(self.to) != 20
            or len(self.nonce) != 32
        ):
            raise_invalid_field(self)

    def packed(self) -> bytes:
        return _pack((self.from_, self.to), self.value, (self.valid_after, self.valid_before), self.nonce)


def _pack(parties: tuple[bytes, bytes], value: int, window: tuple[int, int], nonce: bytes) -> bytes:
    (from_, to), (valid_after, valid_before) = parties, window
    return _AUTHORIZATION_LAYOUT.pack(
        ReceiveWithAuthorization.TYPE_HASH,
        from_,
        to,
        value.to_bytes(32, "big"),
        valid_after.to_bytes(32, "big"),
        valid_before.to_bytes(32, "big"),
        nonce,
    )


def _payment_window(expires_at: int) -> tuple[int, int]:
    return 0, expires_at + 1


def job_payment(owner: bytes, registry: bytes, amount: int, expires_at: int, job_id: bytes) -> ReceiveWithAuthorization:
    """Return the authorization that pays for a job.

    The nonce is the job id, so the authorization pays only for this job. The authorization is valid one second longer
    than the order, so that a claim in the order's last second is paid.
    """
    valid_after, valid_before = _payment_window(expires_at)
    return ReceiveWithAuthorization(owner, registry, amount, valid_after, valid_before, job_id)


def packed_job_payment(owner: bytes, registry: bytes, amount: int, expires_at: int, job_id: bytes) -> bytes:
    """Return the same as `job_payment(...).packed()`, but three times as fast. The values must fit their fields."""
    return _pack((owner, registry), amount, _payment_window(expires_at), job_id)
