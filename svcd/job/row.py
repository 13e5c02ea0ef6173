"""A row of the job book, read strictly: a foreign coordinator's answer is this and nothing else, or `Refused`."""

from typing import Final, Self

import attrs

from common.refusal import Refused
from common.wire.fields import ADDRESS, BYTES32, UINT32, UINT64, UINT128, Schema, Text, read_object, wire
from common.wire.states import JobState

_LONGEST_CID: Final = 1 << 20  # the answer that holds it has a limit of its own


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
    task_cid: str = wire(Text(_LONGEST_CID))
    posted_block: int = wire(UINT64, "where the coordinator saw the post", optional=True, default=0)

    @classmethod
    def read(cls, row: object) -> Self:
        """`Refused` for what is no row of the book."""
        if not isinstance(row, dict):
            raise Refused("a job must be an object")
        if row.get("posted_block", 0) is None:
            raise Refused("posted_block must be a number", "posted_block")
        return read_object(cls, row)

    def as_row(self) -> dict[str, object]:
        """The JSON values that `read` reads back."""
        return {name: _written(value) for name, value in attrs.asdict(self).items()}


def _written(value: bytes | str | int) -> object:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value if isinstance(value, str) else int(value) if isinstance(value, JobState) else str(value)
