"""State of one relayer account: its pending transactions, and its figures as a node last reported them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import anyio
import attrs
import msgspec
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.base.metrics import relayer_funds
from coordinatord.chain.relayer.blocks import HeadBlock
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling, FeeMarket, believed_base_fee, believed_tip
from coordinatord.chain.relayer.in_flight import ENDPOINT_REFUSED, RATE_LIMITED, PendingTx, PendingTxs
from coordinatord.chain.relayer.op_gas import PlannedGas
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.chain.relayer.tx_size import TxSizeLimits
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_result, quantity, retryable_of
from coordinatord.chain.rpc.errors import RpcError

log = structlog.get_logger(__name__)

# Transactions of the account that a node's pool may have and the database not.
MAX_UNKNOWN: Final = 256
# Used nonces beyond the stored ones, as after the restore of an old backup. A false count must not fill the memory.
_MAX_FOREIGN: Final = 100_000
# Highest plausible nonce of an account that is new to the database.
_MAX_NONCE: Final = 1 << 48
# Used when the node advises no tip.
_DEFAULT_TIP_WEI: Final = 1_000_000_000
# Number of recent blocks with tips that limit the node's advice.
_HISTORY: Final = "0x10"
_TIP_PERCENTILE: Final = 60
# Refusals that are no verdict on the transaction's bytes.
_CLIENT_REJECTIONS: Final = (None, RATE_LIMITED, ENDPOINT_REFUSED)


class _FeeHistory(msgspec.Struct):
    baseFeePerGas: list[str]  # noqa: N815 - the node's name
    reward: list[list[str]] | None = None


@attrs.define(slots=True)
class RelayerAccount:
    """State shared by the tasks of one term. A task changes it only after its database transaction has committed.

    `lost`: transactions with nonces that foreign transactions used recently. Their bytes were sent, so they may be
    mined after a reorg.
    """

    chain_id: int
    signer: AccountSigner
    pending: PendingTxs
    lost: PendingTxs
    # Nonces below are used, as of the block last read.
    nonce_floor: int = 0
    # Time of the first read of this floor, by the event loop's clock.
    nonce_floor_since: float = 0.0
    # Nonces from the floor up to here are taken in a node's pool. Never below the floor.
    pool_end: int = 0
    # The pools of all nodes were read in this term.
    pools_read: bool = False
    # Used nonces that were searched in the blocks.
    searched: set[int] = attrs.field(factory=set)
    balance: int = 0
    market: FeeMarket = FeeMarket(0, _DEFAULT_TIP_WEI)
    room: TxSizeLimits = attrs.field(factory=TxSizeLimits)
    ceiling: FeeCeiling = NO_CEILING
    gas: PlannedGas = attrs.field(factory=PlannedGas)
    head: int = 0
    # None: the role is not checked.
    role: RelayerRole | None = None

    @property
    def address(self) -> bytes:
        return self.signer.address

    @property
    def spendable(self) -> int:
        """Balance minus the highest cost of pending transactions."""
        return self.balance - self.pending.cost

    @property
    def lacks_role(self) -> bool:
        return self.role is not None and self.role.is_missing

    @property
    def has_unsent(self) -> bool:
        """Return True while signed bytes wait for a node's first verdict. No answer, a rate limit, or an endpoint that
        does not relay is not a verdict."""
        return any(tx.unsent and tx.refusal in _CLIENT_REJECTIONS for tx in self.pending)

    def watched(self, tx_hash: bytes) -> PendingTx | None:
        """Return the pending or lost transaction that has a version with this hash."""
        return self.pending.with_hash(tx_hash) or self.lost.with_hash(tx_hash)

    def watched_hashes(self) -> list[bytes]:
        return [version.hash for txs in (self.pending, self.lost) for tx in txs for version in tx.versions]

    def was_mined(self, tx: PendingTx) -> None:
        (self.pending if tx in self.pending else self.lost).remove(tx)

    def was_lost(self, tx: PendingTx) -> None:
        self.pending.remove(tx)
        self.lost.add(tx)

    async def read(self, rpc: Rpc, block: HeadBlock) -> None:
        """Read nonce, balance, fees and role at `block`. Use its hash, so that no value is from another branch."""
        address = "0x" + self.address.hex()
        at = {"blockHash": block.hash}
        nonce, pool, balance, tip, history, *roles = await rpc.batch(
            [
                RpcCall("eth_getTransactionCount", (address, at)),
                RpcCall("eth_getTransactionCount", (address, "pending")),
                RpcCall("eth_getBalance", (address, at)),
                RpcCall("eth_maxPriorityFeePerGas"),
                RpcCall("eth_feeHistory", (_HISTORY, "latest", (_TIP_PERCENTILE,))),
                *(self.role.calls(at) if self.role is not None else ()),
            ]
        )
        if isinstance(nonce, RpcError):
            raise retryable_of(nonce, "eth_getTransactionCount")
        if isinstance(balance, RpcError):
            raise retryable_of(balance, "eth_getBalance")
        self._uses_nonces_below(quantity(decode_result(nonce, str, "eth_getTransactionCount")))
        self.pool_end = self.nonce_floor
        if not isinstance(pool, RpcError):
            self._sees_pool(quantity(decode_result(pool, str, "eth_getTransactionCount")))
        self._has(quantity(decode_result(balance, str, "eth_getBalance")))
        advised, base_fee = _DEFAULT_TIP_WEI, block.next_base_fee
        if not isinstance(tip, RpcError):
            advised = quantity(decode_result(tip, str, "eth_maxPriorityFeePerGas"))
        if not isinstance(history, RpcError):
            fee_history = decode_result(history, _FeeHistory, "eth_feeHistory")
            rewards = [quantity(tip) for block_tips in fee_history.reward or () for tip in block_tips]
            advised = believed_tip(advised, rewards, _DEFAULT_TIP_WEI)
            # The last entry is the node's forecast for the next block.
            base_fee = believed_base_fee(
                base_fee, quantity(fee_history.baseFeePerGas[-1]) if fee_history.baseFeePerGas else 0
            )
        self.market = FeeMarket(base_fee, advised)
        if self.role is not None:
            self.role.hear(roles)
        self.room.block_gas_limit = block.gas_limit
        self.head = block.number

    def _uses_nonces_below(self, floor: int) -> None:
        if floor != self.nonce_floor:
            self.nonce_floor, self.nonce_floor_since = floor, anyio.current_time()
            self.searched = {nonce for nonce in self.searched if nonce < floor}

    def require_plausible_floor(self, stored_next: int | None) -> None:
        """Raise Retryable for a count of used nonces that must be false. `stored_next`: the next nonce to assign, None
        for a new account."""
        if self.nonce_floor > (_MAX_NONCE if stored_next is None else stored_next + _MAX_FOREIGN):
            message = f"the node counts {self.nonce_floor} used nonces, and {stored_next or 0} were assigned"
            raise Retryable("chain_unreachable", message)

    async def read_pools(self, rpcs: Iterable[Rpc]) -> None:
        """Read the nonces in the pools of the other nodes. Skip nodes that do not answer."""
        for rpc in rpcs:
            with suppress(Retryable, RpcError):
                count = await rpc.call("eth_getTransactionCount", "0x" + self.address.hex(), "pending")
                self._sees_pool(quantity(count))

    def _sees_pool(self, count: int) -> None:
        """Raise `pool_end` to a node's count of nonces. Ignore a count far above the account's transactions, because it
        would leave a gap."""
        if count <= self.nonce_floor + len(self.pending) + MAX_UNKNOWN:
            self.pool_end = max(self.pool_end, count)
        else:
            log.warning("pending nonce count ignored", count=count, used=self.nonce_floor)

    async def read_balance(self, rpc: Rpc) -> None:
        """Read the latest balance, which can grow without a new block."""
        self._has(quantity(await rpc.call("eth_getBalance", "0x" + self.address.hex(), "latest")))

    def _has(self, balance: int) -> None:
        self.balance = balance
        relayer_funds.labels("0x" + self.address.hex(), "balance").set(balance)
