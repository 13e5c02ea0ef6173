"""Progress of a job, including ops that the coordinator has stored and the chain has not confirmed.

Unconfirmed states are provisional. `rests_on` is the stage that an op has reached.
"""

from typing import Annotated, Generic, Literal

from common.api.member_texts import MEMBER_TEXTS
from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, described
from common.api.states import JobStatus

RestsOn = Literal["stored", "broadcast", "block", "refused"]
ProgressOp = Literal["post", "claim", "settle", "fail", "cancel", "reclaim"]


class ProgressStep(Shape, Generic[N], frozen=True):
    """A call for a job, such as its post or settle, and whether it is stored, broadcast, mined or refused."""

    op: Annotated[ProgressOp, described("call of this step", "settle")]
    rests_on: Annotated[
        RestsOn,
        described(
            "`stored`: the coordinator will send the op, even after a restart; `broadcast`: sent to the nodes in a"
            " signed transaction; `block`: mined, in a block that a reorganisation may still undo; `refused`: the op"
            " will never take effect",
            "stored",
        ),
    ]
    tx_hash: Annotated[Omittable[Bytes32], described("transaction of the op", MEMBER_TEXTS["tx_hash"].example)] = None
    block: Annotated[Omittable[N], described("block that mined the op", "43")] = None
    reason: Annotated[
        Omittable[str],
        described("of a refused op, the contract error, or the code of the error for which the op was not sent"),
    ] = None
    wallet: Annotated[Omittable[Address], described("of a claim, settle or fail, wallet of the provider")] = None
    provider_id: Annotated[Omittable[N], described("of a claim, settle or fail, id of the provider", "1")] = None
    result_cid: Annotated[
        Omittable[str],
        described("of a settle, content id of the sealed result, which can be fetched and opened now"),
    ] = None
    completion_tok: Annotated[Omittable[N], described("of a settle, output units charged", "7")] = None


class JobProgress(Shape, Generic[N], frozen=True):
    """A job with all its ops, including unconfirmed ones."""

    job_id: Bytes32
    status: Annotated[
        JobStatus | Literal["refused"],
        described(
            "status of the job after all unfinished steps have taken effect; `refused` if its post failed for good",
            "completed",
        ),
    ]
    provisional: Annotated[
        bool, described("true while `status` depends on an op that is not in an indexed block", True)
    ]
    steps: Annotated[tuple[ProgressStep[N], ...], described("the job's ops in order, each once, with its latest state")]
    block: Annotated[N, described("last indexed block", "43")]


class ProvisionalJob(JobProgress[Digits], frozen=True):
    """Response with the progress of a job, including unconfirmed ops."""
