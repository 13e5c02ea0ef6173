"""The five provider ops as POST /evm/ops carries them, read strictly."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from common.box import PublicKey
from common.refusal import Refused
from coordinatord.fields import (
    BYTES32,
    SIGNATURE,
    UINT32,
    UINT64,
    Base64,
    Choice,
    HexUpTo,
    Text,
    read_object,
    wire,
)
from coordinatord.service.orders import CID_CHARACTERS, INLINE_BYTES

LONGEST_EVIDENCE: Final = 32_768
_SIGNED = "the provider wallet's signature over the op"


@attrs.frozen(slots=True)
class ClaimOp:
    op: str = wire(Choice(("claim",)))
    job_id: bytes = wire(BYTES32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)


@attrs.frozen(slots=True)
class SettleOp:
    op: str = wire(Choice(("settle",)))
    job_id: bytes = wire(BYTES32)
    completion_tok: int = wire(UINT32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)
    result: bytes | None = wire(Base64(INLINE_BYTES), "the sealed result, not empty", optional=True)
    result_cid: str | None = wire(Text(CID_CHARACTERS), "a result upload of this session", optional=True)


@attrs.frozen(slots=True)
class FailOp:
    op: str = wire(Choice(("fail",)))
    job_id: bytes = wire(BYTES32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)


@attrs.frozen(slots=True)
class SetIdentityOp:
    op: str = wire(Choice(("set_identity",)))
    box_key: bytes = wire(BYTES32, "X25519 key that designated orders are sealed to")
    evidence: bytes = wire(HexUpTo(LONGEST_EVIDENCE))
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)


@attrs.frozen(slots=True)
class RequestCapacityOp:
    op: str = wire(Choice(("request_capacity",)))
    n: int = wire(UINT32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)


JobOp: TypeAlias = ClaimOp | SettleOp | FailOp
ProviderOp: TypeAlias = JobOp | SetIdentityOp | RequestCapacityOp

OPS: Final[dict[str, type[ProviderOp]]] = {
    "claim": ClaimOp,
    "settle": SettleOp,
    "fail": FailOp,
    "set_identity": SetIdentityOp,
    "request_capacity": RequestCapacityOp,
}
_OP: Final = Choice(tuple(OPS))


def read_op(body: Mapping[str, object]) -> ProviderOp:
    if body.get("op") is None:
        raise Refused("op is required", "op")
    op = read_object(OPS[_OP.read(body["op"], "op")], body)
    if isinstance(op, SettleOp):
        _check_result(op)
    if isinstance(op, SetIdentityOp):
        try:
            PublicKey(op.box_key)
        except Refused as weak:
            raise Refused(f"box_key: {weak}", "box_key") from None
    return op


def _check_result(op: SettleOp) -> None:
    if op.result is None and op.result_cid is None:
        raise Refused("settle needs result or result_cid", "result", "result_required")
    if op.result is not None and op.result_cid is not None:
        raise Refused("result and result_cid exclude each other", "result_cid", "result_ambiguous")
    if op.result == b"":
        raise Refused("result must not be empty", "result", "result_required")
