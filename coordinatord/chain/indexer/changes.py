"""Changes of index rows by a range of blocks, folded: at most one for each row.

A job, provider or ask that is new and one that is known are kept apart, so that nothing has to be read to write:
new rows are whole, known ones are changed by patches that also say what must have been there before.
"""

import attrs
import msgspec

from common.api.states import EndedBecause, JobState
from coordinatord.base.errors import Retryable

# The registry's state codes, and its reasons for an ending.
OPEN, CLAIMED, SETTLED, CANCELLED = map(int, JobState)
NOT_ENDED, BY_SETTLE, BY_OWNER, BY_FAIL, BY_RECLAIM, BY_EXPIRY = map(int, EndedBecause)


class NewJob(msgspec.Struct, gc=False):
    """A row of `jobs` in the order of its columns, but for `ordinal`: the writer numbers new rows."""

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
    """Change of a job posted earlier. `was`: the state it must have been in. None: unchanged."""

    job_id: bytes
    was: int
    state: int
    ended_because: int = NOT_ENDED
    provider_id: int | None = None
    claimed_at: int | None = None
    completion_tok: int | None = None
    cost: int | None = None
    result_cid: str | None = None
    ended_at: int | None = None


class NewProvider(msgspec.Struct, gc=False):
    """A row of `providers`, in the order of its columns, as the registry registers one."""

    provider_id: int
    operator: bytes
    box_key: bytes | None = None
    evidence: bytes | None = None
    identity_at: int = 0
    listed: bool = False
    allow_all_models: bool = False
    reputation: int = 500
    requested: int = 1
    ceiling: int = 0
    capacity_at: int = 0
    active_jobs: int = 0


class ProviderPatch(msgspec.Struct, gc=False):
    """Change of a provider registered earlier; None: unchanged. `active_jobs` is a difference."""

    provider_id: int
    operator: bytes | None = None
    box_key: bytes | None = None
    evidence: bytes | None = None
    identity_at: int | None = None
    listed: bool | None = None
    allow_all_models: bool | None = None
    reputation: int | None = None
    requested: int | None = None
    ceiling: int | None = None
    capacity_at: int | None = None
    active_jobs: int = 0


class CatalogueModel(msgspec.Struct, gc=False):
    model_id: int
    name: str
    enabled: bool
    owned_by: str
    params_schema: str


class Changes(msgspec.Struct):
    """Values of None say that the row goes."""

    new_jobs: dict[bytes, NewJob] = {}
    jobs: dict[bytes, JobPatch] = {}
    new_providers: dict[int, NewProvider] = {}
    providers: dict[int, ProviderPatch] = {}
    gone_providers: set[int] = set()
    provider_models: dict[tuple[int, int], bool] = {}
    models: dict[int, CatalogueModel] = {}
    slas: dict[int, bool] = {}
    fees: tuple[int, int] | None = None
    asks: dict[tuple[int, int, int], tuple[int, int] | None] = {}
    ask_times: dict[int, int] = {}
    allowlist: dict[bytes, tuple[int, str]] = {}


@attrs.frozen(slots=True)
class Contradiction(Retryable):
    """The node's logs do not follow from what it told before: some were withheld, now or then."""


def contradiction(what: str) -> Contradiction:
    return Contradiction("chain_unreachable", f"the node's logs contradict each other: {what}")
