"""Faults of the node as seen by the coordinators: errors, hangs, lost or truncated responses, lies."""

from random import Random

import anyio

from tests.soak.ground import Ground
from tests.support.faults.rpc_proxy import (
    ANY,
    ErrorAnswer,
    Fault,
    Hang,
    HttpStatus,
    Refuse,
    Rewrite,
    SwallowAnswer,
    Truncate,
    logs_of_another_block,
    older_head,
    withheld_logs,
)

_METHODS = (ANY, "eth_call", "eth_getLogs", "eth_sendRawTransaction", "eth_getTransactionReceipt")
_ERRORS = ((-32005, "limit exceeded"), (-32603, "Internal error"))
_STATUSES = (403, 429, 502, 503)
_ABSURD_TIP = hex(5 * 10**12)  # 5,000 gwei
_ABSURD_TIPS = (
    Rewrite("eth_maxPriorityFeePerGas", lambda _params, _tip: _ABSURD_TIP),
    Rewrite(
        "eth_feeHistory",
        lambda _params, history: {**history, "reward": [[_ABSURD_TIP] for _ in history["gasUsedRatio"]]},
    ),
)


async def errors(ground: Ground, random: Random, seconds: float) -> None:
    method = random.choice(_METHODS)
    fault: Fault = ErrorAnswer(method, *random.choice(_ERRORS))
    if random.random() < 0.5:
        fault = HttpStatus(method, random.choice(_STATUSES))
    await _for(ground, seconds, fault)


async def hang(ground: Ground, random: Random, seconds: float) -> None:
    await _for(ground, seconds, Hang(random.choice(_METHODS)))


async def swallowed(ground: Ground, random: Random, seconds: float) -> None:
    """The node executes the transaction, and its response is lost, which is the worst case."""
    await _for(ground, seconds, SwallowAnswer(random.choice(("eth_sendRawTransaction", ANY))))


async def truncated(ground: Ground, random: Random, seconds: float) -> None:
    await _for(ground, seconds, Truncate(random.choice(_METHODS), keep=random.random()))


async def lies(ground: Ground, random: Random, seconds: float) -> None:
    lie = random.choice(((withheld_logs(),), (logs_of_another_block(),), older_head(random.randint(1, 20))))
    await _for(ground, seconds, *lie)


async def disagreement(ground: Ground, random: Random, seconds: float) -> None:
    """Make one of two nodes contradict the other."""
    lie = random.choice(((withheld_logs(),), (logs_of_another_block(),), older_head(random.randint(1, 20))))
    with random.choice((ground.rpc, ground.second_rpc)).fault(*lie):
        await anyio.sleep(seconds)


async def nodes_down(ground: Ground, _random: Random, seconds: float) -> None:
    """Take every node down. Connections close without a response."""
    with ground.rpc.fault(Refuse(ANY)), ground.second_rpc.fault(Refuse(ANY)):
        await anyio.sleep(seconds)


async def absurd_tips(ground: Ground, _random: Random, seconds: float) -> None:
    """The node advises an absurd tip, and reports that others paid it."""
    await _for(ground, seconds, *_ABSURD_TIPS)


async def _for(ground: Ground, seconds: float, *faults: Fault) -> None:
    with ground.rpc.fault(*faults):
        await anyio.sleep(seconds)
