"""Progress of a job, including ops that the coordinator has stored and the chain has not confirmed.

Unconfirmed states are provisional, and `rests_on` says how far each op has come.
"""

from typing import Annotated, Generic, Literal

from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, said
from common.api.states import JobStatus
from common.api.words import WORDS

RestsOn = Literal["stored", "broadcast", "block", "refused"]
ProgressOp = Literal["post", "claim", "settle", "fail", "cancel", "reclaim"]


class ProgressStep(Shape, Generic[N], frozen=True):
    """A call for a job, such as its post or settle, and whether it is stored, broadcast, mined or refused."""

    op: Annotated[ProgressOp, said("call that it makes", "settle")]
    rests_on: Annotated[
        RestsOn,
        said(
            "`stored`: the coordinator will send it, over restarts too; `broadcast`: signed in a transaction that the"
            " nodes get; `block`: mined, in a block that a reorganisation may still undo; `refused`: it will not"
            " happen",
            "stored",
        ),
    ]
    tx_hash: Annotated[Omittable[Bytes32], said("transaction that carries it", WORDS["tx_hash"].example)] = None
    block: Annotated[Omittable[N], said("block that it was mined in", "43")] = None
    reason: Annotated[
        Omittable[str], said("of a refused one, the contract's error, or the code of why it was not sent")
    ] = None
    wallet: Annotated[Omittable[Address], said("wallet of the provider, of a claim, settle or fail")] = None
    provider_id: Annotated[Omittable[N], said("id of that provider", "1")] = None
    result_cid: Annotated[
        Omittable[str],
        said("of a settle, content id of the sealed result: it can be fetched and opened from now on"),
    ] = None
    completion_tok: Annotated[Omittable[N], said("of a settle, output units that it charges for", "7")] = None


class JobProgress(Shape, Generic[N], frozen=True):
    """A job with all its ops, including unconfirmed ones."""

    job_id: Bytes32
    status: Annotated[
        JobStatus | Literal["refused"],
        said(
            "status that the job has once all of its steps that are under way have taken effect; `refused` when its"
            " post will not happen",
            "completed",
        ),
    ]
    provisional: Annotated[
        bool, said("true while `status` rests on anything that the index does not have from a block", True)
    ]
    steps: Annotated[
        tuple[ProgressStep[N], ...], said("its ops in order, each once, with the final or the current state")
    ]
    block: Annotated[N, said("last indexed block", "43")]


class ProvisionalJob(JobProgress[Digits], frozen=True):
    """Progress of a job, as the coordinator answers with it."""
