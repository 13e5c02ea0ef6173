"""Use one node's view of the chain for a whole decision, when there are several nodes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.node import FAILURES, Node
from coordinatord.chain.rpc.nodes import Nodes

log = structlog.get_logger(__name__)


class PinnedRpc(Rpc):
    """Sends every request to one node while it is fit, and changes nodes only between decisions.

    Nonces, receipts and simulations of one decision then come from one view of the chain. Shared by the tasks of one
    relayer.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(self._ask_node)
        self._nodes = nodes
        self._node = nodes.fit()[0]
        self._failed = 0
        self._deciding = 0
        self._idle = anyio.Event()
        self._door = anyio.Lock()

    async def _ask_node(self, body: bytes) -> tuple[int, bytes]:
        return await self._node.own(body)

    @property
    def node(self) -> Node:
        return self._node

    @property
    def others(self) -> Sequence[Rpc]:
        return [node.rpc for node in self._nodes.fit() if node is not self._node and not node.unreachable]

    @asynccontextmanager
    async def decision(self, *, leads: bool = False) -> AsyncIterator[None]:
        """Route every request within the block to the same node.

        A decision that `leads` may change the node before it begins. It first waits for running decisions to end, and
        others wait for it, so that no decision mixes the views of two nodes.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._door)
            if leads and self._better() is not None:
                while self._deciding:
                    self._idle = anyio.Event()
                    await self._idle.wait()
                self._change()
            else:
                # Only a leading decision that changes nodes blocks others.
                await stack.aclose()
            self._deciding += 1
            try:
                yield
            except (Retryable, RpcError):
                self._failed += leads
                raise
            else:
                self._failed = 0 if leads else self._failed
            finally:
                self._deciding -= 1
                if not self._deciding:
                    self._idle.set()

    def _better(self) -> Node | None:
        """Return another node if the current one is unfit or repeatedly fails leading decisions."""
        fit = self._nodes.fit()
        if self._node in fit and not self._node.unreachable and self._failed < FAILURES:
            return None
        return next((node for node in fit if node is not self._node and not node.unreachable), None)

    def _change(self) -> None:
        node = self._better()
        if node is not None:
            log.warning("relayer node changed", node=node.name, before=self._node.name)
            self._node, self._failed = node, 0
