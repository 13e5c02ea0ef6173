"""A row of the job book, as the coordinator tells it."""

import enum
from typing import Final, Self

import attrs

from common.refusal import Refused
from common.scalars import read_hex, read_uint


class JobState(enum.IntEnum):
    OPEN = 0
    CLAIMED = 1
    SETTLED = 2
    CANCELLED = 3


_UINTS: Final = {
    "model_id": 32,
    "sla_secs": 32,
    "designated": 32,
    "rate_in": 128,
    "rate_out": 128,
    "units_in": 32,
    "units_out": 32,
    "expires_at": 64,
    "provider_id": 32,
    "claimed_at": 64,
}


@attrs.frozen(slots=True, kw_only=True)
class Job:
    job_id: bytes
    owner: bytes
    c: bytes
    model_id: int
    sla_secs: int
    designated: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    expires_at: int
    provider_id: int  # 0 until claimed
    claimed_at: int
    state: JobState
    task_cid: str
    posted_block: int = 0  # where the coordinator saw the post

    @classmethod
    def read(cls, row: object) -> Self:
        """`Refused` for what is no row of the book."""
        if not isinstance(row, dict):
            raise Refused("a job must be an object")
        task_cid, state = row.get("task_cid"), row.get("state")
        if not isinstance(task_cid, str) or state not in list(JobState):
            raise Refused("a job's task_cid or state is malformed")
        return cls(
            job_id=read_hex(row.get("job_id"), 32, "job_id"),
            owner=read_hex(row.get("owner"), 20, "owner"),
            c=read_hex(row.get("c"), 32, "c"),
            state=JobState(state),
            task_cid=task_cid,
            posted_block=read_uint(row.get("posted_block", 0), 64, "posted_block"),
            **{name: read_uint(row.get(name), bits, name) for name, bits in _UINTS.items()},
        )

    def as_row(self) -> dict[str, object]:
        """What `read` reads back."""
        return {
            "job_id": "0x" + self.job_id.hex(),
            "owner": "0x" + self.owner.hex(),
            "c": "0x" + self.c.hex(),
            "state": int(self.state),
            "task_cid": self.task_cid,
            "posted_block": str(self.posted_block),
            **{name: str(getattr(self, name)) for name in _UINTS},
        }
