"""Kill the relayer at each place where it waits, and restart it. Each op is relayed once, for any answer of the node.

By default a few ops meet one crash after another, until all places are covered. If the node rejects the bytes, the
crashes begin at their broadcast. With `CRASH_POINTS=apart` each place gets a separate op and a
single crash, under more node answers.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import anyio
import attrs
import pytest

from common.secp256k1 import Wallet
from coordinatord.chain.relayer import in_flight
from coordinatord.chain.relayer.outbox_sql import NewRelay
from coordinatord.chain.relayer.relaying import RelayMined
from coordinatord.chain.relayer.signers import WalletSigner
from coordinatord.chain.relayer.worker import run_relayer
from coordinatord.storage.database import locks
from devnet.anvil import CHAIN_ID
from tests.integration.coordinatord.relayer.running import Scene, Stage, relay_into
from tests.support.faults.crash_points import CrashPoints
from tests.support.faults.rpc_proxy import (
    ErrorAnswer,
    Fault,
    Hang,
    HttpStatus,
    RpcProxy,
    SwallowAnswer,
    Truncate,
)

APART: Final = os.environ.get("CRASH_POINTS") == "apart"
SEND: Final = "eth_sendRawTransaction"
ANSWERS: Final[dict[str, Fault | None]] = {
    "taken": None,
    "refused": ErrorAnswer(SEND, -32603, "Internal error"),
    "answer lost": SwallowAnswer(SEND),
    "time-out": Hang(SEND),
}
MORE_ANSWERS: Final[dict[str, Fault | None]] = {
    "called known": ErrorAnswer(SEND, -32000, "already known"),
    "called used": ErrorAnswer(SEND, -32000, "nonce too low"),
    "pool full": ErrorAnswer(SEND, -32000, "txpool is full"),
    "answer torn": Truncate(SEND),
    "gateway": HttpStatus(SEND, 502),
}
_RELAYER: Final = "coordinatord/chain/relayer/"
# Modules that depend on the node's answer, and all between intake and resolution. Every run must cover them.
SENDING_MODULES: Final = tuple(
    f"{_RELAYER}{step}.py" for step in ("broadcast", "receipt_watcher", "receipts", "resolution", "results_sql")
)
CHAINS: Final = f"{_RELAYER}chains.py"
ALL_MODULES: Final = (
    *(f"{_RELAYER}{step}.py" for step in ("intake", "simulate", "signing", "transactions_sql")),
    *SENDING_MODULES,
)


@attrs.frozen
class CrashingRelayer:
    """Relayer that crashes at each new crash point, and restarts.

    `answer` is the node's reaction to the first broadcast of each op. Later broadcasts are accepted.
    """

    stage: Stage
    proxy: RpcProxy
    answer: Fault | None
    wallet: Wallet
    points: CrashPoints

    async def count_crashes(self, *ops: NewRelay) -> int:
        """Return the number of crashes until these ops, queued together, had ended."""
        outcomes: list[object] = []
        crashes, life = 0, anyio.CancelScope()

        async def relay(op: NewRelay) -> None:
            await relay_into(self.stage, outcomes)(op)
            if len(outcomes) == len(ops):
                life.cancel()

        async with anyio.create_task_group() as around:
            for count, op in enumerate(ops, 1):
                around.start_soon(relay, op)
                await self.stage.until("select count(*) = $1 from relays where state = 'queued'", count)
            with self._first_sending() as over:
                around.start_soon(over)
                while len(outcomes) < len(ops):
                    life = anyio.CancelScope()
                    if crashes and APART:
                        with life:
                            await self._relayer()
                    elif await self.points.live(life, self._relayer) is not None:
                        crashes += 1
            around.cancel_scope.cancel()
        assert [type(outcome) for outcome in outcomes] == [RelayMined] * len(ops)
        return crashes

    async def _relayer(self) -> None:
        stage, signer = self.stage, WalletSigner(self.wallet)
        await run_relayer(stage.database, stage.notices, stage.rpc, signer, chain_id=CHAIN_ID, settings=stage.settings)

    @contextmanager
    def _first_sending(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Start the fault. Yield a task that ends the fault after its first answer."""
        before = self.proxy.seen(SEND)
        with ExitStack() as answering:
            if self.answer is not None:
                answering.enter_context(self.proxy.fault(self.answer))

            async def over() -> None:
                while self.proxy.seen(SEND) == before:  # noqa: ASYNC110 - the proxy counts, it does not tell
                    await anyio.sleep(0.005)
                answering.close()

            yield over


@pytest.mark.timeout(600 if APART else 300)
@pytest.mark.parametrize(
    "answer",
    [
        "taken",
        *(pytest.param(answer, marks=pytest.mark.long) for answer in ANSWERS if answer != "taken"),
        *(MORE_ANSWERS if APART else ()),
    ],
)
async def test_crashing_relayer_relays_each_op_once(scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(locks, "ROLE_POLL_INTERVAL_S", 0.01)
    # A node that answers "already known" without the transaction gets the bytes at the next rebroadcast.
    monkeypatch.setattr(in_flight, "REBROADCAST_INTERVAL_S", 0.3)
    covers_all_modules = APART or answer == "taken"
    points = CrashPoints("coordinatord", ("",) if covers_all_modules else SENDING_MODULES)
    async with scene.stage_behind_proxy(timeout_s=0.3) as (stage, proxy):
        relayer = CrashingRelayer(stage, proxy, (ANSWERS | MORE_ANSWERS)[answer], scene.relayer, points)
        crashes = [await relayer.count_crashes(scene.post())]
        # Continue until one op meets no new crash point.
        while crashes[-1]:
            crashes.append(await relayer.count_crashes(scene.post()))
        lines = [line for place in points.met for line in place]
        modules = ALL_MODULES if covers_all_modules else SENDING_MODULES
        uncovered = [module for module in modules if not any(line.startswith(module) for line in lines)]
        assert uncovered == []
        assert sum(crashes) == len(points.met) > (50 if covers_all_modules else 20)
        # Each op has its own transaction, in one version.
        mined = await stage.fetchval("select count(*) from relays where state = 'mined' and requeued = 0")
        assert mined == len(crashes)
        assert await stage.fetchval("select count(distinct tx_id) from relays") == len(crashes)
        assert await stage.fetchval("select count(*) from relay_txs") == len(crashes)
        assert await stage.fetchval("select count(*) from relay_tx_versions") == len(crashes)
        await scene.check(stage)


@pytest.mark.timeout(600 if APART else 60)
@pytest.mark.parametrize("most", [64, 1], ids=["one transaction", "a nonce each"])
async def test_crashing_relayer_sends_a_jobs_ops_once_in_order(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(locks, "ROLE_POLL_INTERVAL_S", 0.01)
    points = CrashPoints("coordinatord", ("",) if APART else (CHAINS,))

    def job() -> list[NewRelay]:
        post = scene.post()
        return [post, scene.claim(post.subject), scene.settle(post.subject)]

    async with scene.stage_behind_proxy(coalesce_max=most) as (stage, proxy):
        relayer = CrashingRelayer(stage, proxy, None, scene.relayer, points)
        crashes = [await relayer.count_crashes(*job())]
        while crashes[-1]:
            crashes.append(await relayer.count_crashes(*job()))
        assert sum(crashes) == len(points.met) >= 2
        assert any(line.startswith(CHAINS) for place in points.met for line in place)
        mined = await stage.fetchval("select count(*) from relays where state = 'mined' and requeued = 0")
        assert mined == 3 * len(crashes)
        assert await stage.fetchval("select count(*) from relay_txs") == len(crashes) * (3 if most == 1 else 1)
        assert await stage.fetchval("select bool_and(succeeded) from relay_txs")
        await scene.check(stage)
