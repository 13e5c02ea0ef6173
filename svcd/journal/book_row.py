"""Rows of the job book. A row of any other form is rejected as `Refused`."""

from typing import Final, Self

import attrs

from common.api.fields import (
    ADDRESS,
    BYTES32,
    SIGNATURE,
    UINT32,
    UINT64,
    UINT128,
    UINT256,
    Schema,
    Text,
    read_object,
    wire,
)
from common.api.states import JobState
from common.messages.jobs import Order
from common.refusal import Refused

_MAX_CID_LENGTH: Final = 1 << 20  # the size of the whole answer is limited elsewhere


@attrs.frozen(slots=True)
class _State:
    """A job's state, as the registry numbers it."""

    def read(self, value: object, param: str) -> JobState:
        for state in JobState:
            if value == state:
                return state
        raise Refused(f"{param} must be the number of a job state", param)

    def schema(self) -> Schema:
        return {"type": "integer", "enum": [int(state) for state in JobState]}


@attrs.frozen(slots=True, kw_only=True)
class Job:
    """Job as the coordinator's book has it."""

    job_id: bytes = wire(BYTES32)
    owner: bytes = wire(ADDRESS)
    c: bytes = wire(BYTES32)
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    designated: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    expires_at: int = wire(UINT64)
    provider_id: int = wire(UINT32, "0 until claimed")
    claimed_at: int = wire(UINT64)
    state: JobState = wire(_State())
    task_cid: str = wire(Text(_MAX_CID_LENGTH))
    posted_block: int = wire(UINT64, "where the coordinator saw the post", optional=True, default=0)

    @classmethod
    def read(cls, row: object) -> Self:
        """Read a row. Raise `Refused` if it is malformed."""
        if not isinstance(row, dict):
            raise Refused("a job must be an object")
        if row.get("posted_block", 0) is None:
            raise Refused("posted_block must be a number", "posted_block")
        return read_object(cls, row)

    @property
    def order(self) -> Order:
        """Terms that the job's owner signed."""
        return Order(**{field.name: getattr(self, field.name) for field in attrs.fields(Order)})

    def as_row(self) -> dict[str, object]:
        """Return the JSON values of the row, as `read` expects them."""
        return {name: _written(value) for name, value in attrs.asdict(self).items()}


@attrs.frozen(slots=True, kw_only=True)
class PendingOffer:
    """Job offered before its post is in a block, with the owner's signatures."""

    job_id: bytes = wire(BYTES32)
    owner: bytes = wire(ADDRESS)
    c: bytes = wire(BYTES32)
    model_id: int = wire(UINT32)
    sla_secs: int = wire(UINT32)
    designated: int = wire(UINT32)
    rate_in: int = wire(UINT128)
    rate_out: int = wire(UINT128)
    units_in: int = wire(UINT32)
    units_out: int = wire(UINT32)
    expires_at: int = wire(UINT64)
    task_cid: str = wire(Text(_MAX_CID_LENGTH))
    signature: bytes = wire(SIGNATURE)
    auth_sig: bytes = wire(SIGNATURE)
    amount: int = wire(UINT256)

    @classmethod
    def read(cls, row: object) -> Self:
        if not isinstance(row, dict):
            raise Refused("a pending job must be an object")
        return read_object(cls, row)

    def job(self, block: int) -> Job:
        """Return the job as the book will have it, with its post searched from `block` on."""
        return Job(
            job_id=self.job_id,
            owner=self.owner,
            c=self.c,
            model_id=self.model_id,
            sla_secs=self.sla_secs,
            designated=self.designated,
            rate_in=self.rate_in,
            rate_out=self.rate_out,
            units_in=self.units_in,
            units_out=self.units_out,
            expires_at=self.expires_at,
            provider_id=0,
            claimed_at=0,
            state=JobState.OPEN,
            task_cid=self.task_cid,
            posted_block=block,
        )


def _written(value: bytes | str | int) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if isinstance(value, str) else int(value) if isinstance(value, JobState) else str(value)
