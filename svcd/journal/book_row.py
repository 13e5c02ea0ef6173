"""Read rows of the coordinator's job book, and offers of jobs whose post is not mined yet. Reject malformed rows."""

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
    body_field,
    read_object,
)
from common.api.states import JobState
from common.messages.jobs import Order
from common.refusal import Refused

_MAX_CID_LENGTH: Final = 1 << 20  # `Text` requires a limit, but the limit on the response's size is stricter


@attrs.frozen(slots=True)
class _JobStateField:
    """Kind of a field that contains a job's state as the registry's number."""

    def read(self, value: object, param: str) -> JobState:
        for state in JobState:
            if value == state:
                return state
        raise Refused(f"{param} must be the number of a job state", param)

    def schema(self) -> Schema:
        return {"type": "integer", "enum": [int(state) for state in JobState]}


@attrs.frozen(slots=True, kw_only=True)
class Job:
    """Row of a job in the coordinator's job book."""

    job_id: bytes = body_field(BYTES32)
    owner: bytes = body_field(ADDRESS)
    c: bytes = body_field(BYTES32)
    model_id: int = body_field(UINT32)
    sla_secs: int = body_field(UINT32)
    designated: int = body_field(UINT32)
    rate_in: int = body_field(UINT128)
    rate_out: int = body_field(UINT128)
    units_in: int = body_field(UINT32)
    units_out: int = body_field(UINT32)
    expires_at: int = body_field(UINT64)
    provider_id: int = body_field(UINT32, "0 until claimed")
    claimed_at: int = body_field(UINT64)
    state: JobState = body_field(_JobStateField())
    task_cid: str = body_field(Text(_MAX_CID_LENGTH))
    posted_block: int = body_field(UINT64, "block of the post", optional=True, default=0)

    @classmethod
    def read(cls, row: object) -> Self:
        """Read a row. Raise `Refused` if the row is malformed."""
        if not isinstance(row, dict):
            raise Refused("a row of the job book must be a JSON object")
        if row.get("posted_block", 0) is None:
            raise Refused("posted_block must be a number", "posted_block")
        return read_object(cls, row)

    @property
    def order(self) -> Order:
        """Terms that the job's owner signed."""
        return Order(**{field.name: getattr(self, field.name) for field in attrs.fields(Order)})

    def as_row(self) -> dict[str, object]:
        """Return the JSON values of the row, as `read` expects them."""
        return {name: _to_json_value(value) for name, value in attrs.asdict(self).items()}


@attrs.frozen(slots=True, kw_only=True)
class PendingOffer:
    """Job offered before its post is in a block, with the owner's signatures."""

    job_id: bytes = body_field(BYTES32)
    owner: bytes = body_field(ADDRESS)
    c: bytes = body_field(BYTES32)
    model_id: int = body_field(UINT32)
    sla_secs: int = body_field(UINT32)
    designated: int = body_field(UINT32)
    rate_in: int = body_field(UINT128)
    rate_out: int = body_field(UINT128)
    units_in: int = body_field(UINT32)
    units_out: int = body_field(UINT32)
    expires_at: int = body_field(UINT64)
    task_cid: str = body_field(Text(_MAX_CID_LENGTH))
    signature: bytes = body_field(SIGNATURE)
    auth_sig: bytes = body_field(SIGNATURE)
    amount: int = body_field(UINT256)

    @classmethod
    def read(cls, row: object) -> Self:
        if not isinstance(row, dict):
            raise Refused("a pending job must be a JSON object")
        return read_object(cls, row)

    def to_job(self, block: int) -> Job:
        """Return the row that the job will have in the job book. `block` is the approximate block of the post."""
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


def _to_json_value(value: bytes | str | int) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if isinstance(value, str) else int(value) if isinstance(value, JobState) else str(value)
