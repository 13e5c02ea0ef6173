"""Progress of a job, including ops that the coordinator has stored and the chain has not confirmed.

Unconfirmed states are provisional, and `rests_on` says how far each op has come.
"""

from typing import Annotated, Generic, Literal

from common.api.shapes import Address, Bytes32, Digits, N, Omittable, Shape, described
from common.api.states import JobStatus
from common.api.words import WORDS

RestsOn = Literal["stored", "broadcast", "block", "refused"]
ProgressOp = Literal["post", "claim", "settle", "fail", "cancel", "reclaim"]


class ProgressStep(Shape, Generic[N], frozen=True):
    """A call for a job, such as its post or settle, and whether it is stored, broadcast, mined or refused."""

    op: Annotated[ProgressOp, described("call that it makes", "settle")]
    rests_on: Annotated[
        RestsOn,
        described(
            "`stored`: the coordinator will send it, over restarts too; `broadcast`: signed in a transaction that the"
            " nodes get; `block`: mined, in a block that a reorganisation may still undo; `refused`: it will not"
            " happen",
            "stored",
        ),
    ]
    tx_hash: Annotated[Omittable[Bytes32], described("transaction that carries it", WORDS["tx_hash"].example)] = None
    block: Annotated[Omittable[N], described("block that it was mined in", "43")] = None
    reason: Annotated[
        Omittable[str], described("of a refused one, the contract's error, or the code of why it was not sent")
    ] = None
    wallet: Annotated[Omittable[Address], described("wallet of the provider, of a claim, settle or fail")] = None
    provider_id: Annotated[Omittable[N], described("id of that provider", "1")] = None
    result_cid: Annotated[
        Omittable[str],
        described("of a settle, content id of the sealed result: it can be fetched and opened from now on"),
    ] = None
    completion_tok: Annotated[Omittable[N], described("of a settle, output units that it charges for", "7")] = None


class JobProgress(Shape, Generic[N], frozen=True):
    """A job with all its ops, including unconfirmed ones."""

    job_id: Bytes32
    status: Annotated[
        JobStatus | Literal["refused"],
        described(
            "status that the job has once all of its steps that are under way have taken effect; `refused` when its"
            " post will not happen",
            "completed",
        ),
    ]
    provisional: Annotated[
        bool, described("true while `status` rests on anything that the index does not have from a block", True)
    ]
    steps: Annotated[
        tuple[ProgressStep[N], ...], described("its ops in order, each once, with the final or the current state")
    ]
    block: Annotated[N, described("last indexed block", "43")]


class ProvisionalJob(JobProgress[Digits], frozen=True):
    """Progress of a job, as the coordinator answers with it."""
