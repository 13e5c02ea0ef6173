"""Row changes of a range of blocks, merged to at most one change per row.

New rows are kept apart from changes to existing rows, so that writing requires no reads. New rows are complete. Patches
of existing rows also name the state that the row must be in.
"""

import attrs
import msgspec

from common.api.states import EndedBecause, JobState
from coordinatord.base.errors import Retryable

# State codes of the registry, and its reasons for the end of a job.
OPEN, CLAIMED, SETTLED, CANCELLED = map(int, JobState)
NOT_ENDED, BY_SETTLE, BY_OWNER, BY_FAIL, BY_RECLAIM, BY_EXPIRY = map(int, EndedBecause)


class NewJob(msgspec.Struct, gc=False):
    """Row of `jobs`, in column order, without `ordinal`: the writer numbers new rows."""

    job_id: bytes
    owner: bytes
    c: bytes
    model_id: int
    sla_secs: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    designated: int
    expires_at: int
    cap: int
    fee_bps: int
    gas_fee: int
    task_cid: str
    pay_sig: bytes
    posted_block: int
    posted_log: int
    state: int = OPEN
    ended_because: int = NOT_ENDED
    provider_id: int = 0
    claimed_at: int = 0
    completion_tok: int = 0
    cost: int = 0
    result_cid: str | None = None
    ended_at: int | None = None


class JobPatch(msgspec.Struct, gc=False):
    """Change of a job that was posted earlier. The job must be in `required_state`. None leaves a column
    unchanged."""

    job_id: bytes
    required_state: int
    state: int
    ended_because: int = NOT_ENDED
    provider_id: int | None = None
    claimed_at: int | None = None
    completion_tok: int | None = None
    cost: int | None = None
    result_cid: str | None = None
    ended_at: int | None = None


class NewProvider(msgspec.Struct, gc=False):
    """Row of `providers`, in column order, with the registry's initial values."""

    provider_id: int
    operator: bytes
    box_key: bytes | None = None
    evidence: bytes | None = None
    identity_issued_at: int = 0
    listed: bool = False
    allow_all_models: bool = False
    reputation: int = 500
    requested: int = 1
    ceiling: int = 0
    capacity_issued_at: int = 0
    active_jobs: int = 0


class ProviderPatch(msgspec.Struct, gc=False):
    """Change of a provider registered earlier. None leaves a column unchanged. `active_jobs` is added to the column."""

    provider_id: int
    operator: bytes | None = None
    box_key: bytes | None = None
    evidence: bytes | None = None
    identity_issued_at: int | None = None
    listed: bool | None = None
    allow_all_models: bool | None = None
    reputation: int | None = None
    requested: int | None = None
    ceiling: int | None = None
    capacity_issued_at: int | None = None
    active_jobs: int = 0


class CatalogueModel(msgspec.Struct, gc=False):
    model_id: int
    name: str
    enabled: bool
    owned_by: str
    params_schema: str


class RowChanges(msgspec.Struct):
    """All row changes of one range. A value of None deletes the row."""

    new_jobs: dict[bytes, NewJob] = {}
    jobs: dict[bytes, JobPatch] = {}
    new_providers: dict[int, NewProvider] = {}
    providers: dict[int, ProviderPatch] = {}
    removed_providers: set[int] = set()
    provider_models: dict[tuple[int, int], bool] = {}
    models: dict[int, CatalogueModel] = {}
    slas: dict[int, bool] = {}
    fees: tuple[int, int] | None = None
    asks: dict[tuple[int, int, int], tuple[int, int] | None] = {}
    ask_times: dict[int, int] = {}
    allowlist: dict[bytes, tuple[int, str]] = {}


@attrs.frozen(slots=True)
class Contradiction(Retryable):
    """The node's logs do not fit the logs that it returned earlier. The node withheld logs, then or now."""


def contradiction_error(problem: str) -> Contradiction:
    return Contradiction("chain_unreachable", f"the node's logs contradict each other: {problem}")
