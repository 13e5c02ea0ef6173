"""State of one relayer account: its pending transactions, and its nonce, balance and fees as a node last reported
them."""

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
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling, FeeMarket, plausible_base_fee, plausible_tip
from coordinatord.chain.relayer.in_flight import ENDPOINT_REFUSED, RATE_LIMITED, PendingTx, PendingTxs
from coordinatord.chain.relayer.op_gas import PlannedGas
from coordinatord.chain.relayer.role import RelayerRole
from coordinatord.chain.relayer.signers import AccountSigner
from coordinatord.chain.relayer.tx_size import AdaptiveTxLimits
from coordinatord.chain.rpc.client import Rpc, RpcCall, decode_quantity, decode_result, to_retryable
from coordinatord.chain.rpc.errors import RpcError

log = structlog.get_logger(__name__)

# Maximum number of the account's transactions in a node's pool that the database does not know.
MAX_UNKNOWN_TXS: Final = 256
# Maximum number of nonces that the chain has used beyond those in the database, as happens after an old backup was
# restored. Limited because a node may report a false count.
_MAX_FOREIGN_NONCES: Final = 100_000
# Highest plausible nonce of an account that is new to the database.
_MAX_NONCE: Final = 1 << 48
# Used when the node advises no tip.
_DEFAULT_TIP_WEI: Final = 1_000_000_000
# Number of recent blocks whose tips limit the tip that the node advises.
_FEE_HISTORY_BLOCKS: Final = "0x10"
_TIP_PERCENTILE: Final = 60
# Values of `PendingTx.refusal_code` that do not say if a node would accept the transaction's bytes.
_NO_VERDICT_REFUSALS: Final = (None, RATE_LIMITED, ENDPOINT_REFUSED)


class _FeeHistory(msgspec.Struct):
    baseFeePerGas: list[str]  # noqa: N815 - the node's name
    reward: list[list[str]] | None = None


@attrs.define(slots=True)
class RelayerAccount:
    """State shared by the relayer's tasks while this process holds the account's role. A task changes the state only
    after the task's database transaction has committed."""

    chain_id: int
    signer: AccountSigner
    pending_txs: PendingTxs
    # Transactions whose nonce was recently used by a transaction that this deployment did not sign. A reorg may still
    # get them mined.
    lost_txs: PendingTxs
    # Nonces below this number are used, as of the block last read.
    nonce_floor: int = 0
    # Time of the first read of this floor, by the event loop's clock.
    nonce_floor_since: float = 0.0
    # Nonces from the floor up to this number, exclusive, are used by transactions in a node's pool. Never below the
    # floor.
    pool_nonces_end: int = 0
    # True if the pools of all nodes were read since this process acquired the role.
    are_pools_read: bool = False
    # Used nonces that `adopt_forgotten_transactions` has already searched for in the blocks.
    searched_nonces: set[int] = attrs.field(factory=set)
    balance_wei: int = 0
    fee_market: FeeMarket = FeeMarket(0, _DEFAULT_TIP_WEI)
    tx_limits: AdaptiveTxLimits = attrs.field(factory=AdaptiveTxLimits)
    fee_ceiling: FeeCeiling = NO_CEILING
    planned_gas: PlannedGas = attrs.field(factory=PlannedGas)
    head_number: int = 0
    # None if the role is not checked.
    role: RelayerRole | None = None

    @property
    def address(self) -> bytes:
        return self.signer.address

    @property
    def spendable_wei(self) -> int:
        """Balance minus the highest cost of pending transactions."""
        return self.balance_wei - self.pending_txs.max_cost

    @property
    def lacks_role(self) -> bool:
        return self.role is not None and self.role.is_missing

    @property
    def has_unsent(self) -> bool:
        """Return True while any signed transaction was neither accepted nor refused by a node. A missing answer, a rate
        limit and an endpoint that does not relay do not count as refusals."""
        return any(tx.is_unsent and tx.refusal_code in _NO_VERDICT_REFUSALS for tx in self.pending_txs)

    def find_watched(self, tx_hash: bytes) -> PendingTx | None:
        """Return the pending or lost transaction that has a version with this hash."""
        return self.pending_txs.find_by_hash(tx_hash) or self.lost_txs.find_by_hash(tx_hash)

    def watched_hashes(self) -> list[bytes]:
        return [version.hash for txs in (self.pending_txs, self.lost_txs) for tx in txs for version in tx.versions]

    def precedes_new_txs(self, tx_id: int | None) -> bool:
        """Return True if the ops of this transaction come before everything that the account signs next: the
        transaction is pending, and no version of it is a self-transfer."""
        tx = None if tx_id is None else self.pending_txs.find_by_id(tx_id)
        return tx is not None and not any(version.is_self_transfer for version in tx.versions)

    async def read(self, rpc: Rpc, block: HeadBlock) -> None:
        """Read nonce, balance, fees and role at `block`. Name the block by its hash, so that no value comes from
        another branch."""
        address = "0x" + self.address.hex()
        at = {"blockHash": block.hash}
        nonce, pool, balance, tip, history, *roles = await rpc.batch(
            [
                RpcCall("eth_getTransactionCount", (address, at)),
                RpcCall("eth_getTransactionCount", (address, "pending")),
                RpcCall("eth_getBalance", (address, at)),
                RpcCall("eth_maxPriorityFeePerGas"),
                RpcCall("eth_feeHistory", (_FEE_HISTORY_BLOCKS, "latest", (_TIP_PERCENTILE,))),
                *(self.role.role_calls(at) if self.role is not None else ()),
            ]
        )
        if isinstance(nonce, RpcError):
            raise to_retryable(nonce, "eth_getTransactionCount")
        if isinstance(balance, RpcError):
            raise to_retryable(balance, "eth_getBalance")
        floor = decode_quantity(decode_result(nonce, str, "eth_getTransactionCount"))
        if floor != self.nonce_floor:
            self.nonce_floor, self.nonce_floor_since = floor, anyio.current_time()
            self.searched_nonces = {nonce for nonce in self.searched_nonces if nonce < floor}
        self.pool_nonces_end = self.nonce_floor
        if not isinstance(pool, RpcError):
            self._raise_pool_end(decode_quantity(decode_result(pool, str, "eth_getTransactionCount")))
        self._set_balance(decode_quantity(decode_result(balance, str, "eth_getBalance")))
        advised, base_fee = _DEFAULT_TIP_WEI, block.next_base_fee
        if not isinstance(tip, RpcError):
            advised = decode_quantity(decode_result(tip, str, "eth_maxPriorityFeePerGas"))
        if not isinstance(history, RpcError):
            fee_history = decode_result(history, _FeeHistory, "eth_feeHistory")
            rewards = [decode_quantity(tip) for block_tips in fee_history.reward or () for tip in block_tips]
            advised = plausible_tip(advised, rewards, _DEFAULT_TIP_WEI)
            # The last entry is the node's forecast for the next block.
            base_fee = plausible_base_fee(
                base_fee, decode_quantity(fee_history.baseFeePerGas[-1]) if fee_history.baseFeePerGas else 0
            )
        self.fee_market = FeeMarket(base_fee, advised)
        if self.role is not None:
            self.role.learn_role(roles)
        self.tx_limits.block_gas_limit = block.gas_limit
        self.head_number = block.number

    def require_plausible_nonce_floor(self, stored_next_nonce: int | None) -> None:
        """Raise Retryable if the node's count of used nonces is implausibly high. `stored_next_nonce` is the next nonce
        to assign, or None for a new account."""
        if self.nonce_floor > (_MAX_NONCE if stored_next_nonce is None else stored_next_nonce + _MAX_FOREIGN_NONCES):
            message = f"the node counts {self.nonce_floor} used nonces, but only {stored_next_nonce or 0} were assigned"
            raise Retryable("chain_unreachable", message)

    async def read_pools(self, rpcs: Iterable[Rpc]) -> None:
        """Read the nonces in the pools of the other nodes. Skip nodes that do not answer."""
        for rpc in rpcs:
            with suppress(Retryable, RpcError):
                count = await rpc.call("eth_getTransactionCount", "0x" + self.address.hex(), "pending")
                self._raise_pool_end(decode_quantity(count))

    def _raise_pool_end(self, count: int) -> None:
        """Raise `pool_nonces_end` to a node's count of nonces. Ignore a count far above the account's transactions,
        because signing from such a nonce would leave a gap."""
        if count <= self.nonce_floor + len(self.pending_txs) + MAX_UNKNOWN_TXS:
            self.pool_nonces_end = max(self.pool_nonces_end, count)
        else:
            log.warning("pending nonce count ignored", count=count, used=self.nonce_floor)

    async def read_balance(self, rpc: Rpc) -> None:
        """Read the latest balance, which can grow without a new block."""
        self._set_balance(decode_quantity(await rpc.call("eth_getBalance", "0x" + self.address.hex(), "latest")))

    def _set_balance(self, balance: int) -> None:
        self.balance_wei = balance
        relayer_funds.labels("0x" + self.address.hex(), "balance").set(balance)
