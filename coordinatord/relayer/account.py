"""What is known of one relayer account: its pending transactions and what the node last said of it."""

from typing import Final

import attrs
import msgspec

from common.secp256k1 import Wallet
from coordinatord.chain.rpc import Call, Rpc, decode_result, quantity, trouble_of
from coordinatord.chain.rpc_errors import RpcError
from coordinatord.metrics import relayer_balance
from coordinatord.relayer.fees import Market
from coordinatord.relayer.heads import Block
from coordinatord.relayer.pending import PendingTx, PendingTxs

_DEFAULT_TIP: Final = 1_000_000_000  # where a node does not advise one


class _FeeHistory(msgspec.Struct):
    baseFeePerGas: list[str]  # noqa: N815 - the node's name


@attrs.define(slots=True)
class Account:
    """Shared by the tasks of one term; each changes it only after its own database transaction has committed.

    `lost`: nonces used by somebody else, a short while ago. Their bytes are in the world, and a reorganisation may
    let them be mined after all.
    """

    chain_id: int
    wallet: Wallet
    pending: PendingTxs
    lost: PendingTxs
    nonce_floor: int = 0  # nonces below are used, as of the block last read
    balance: int = 0
    market: Market = Market(0, _DEFAULT_TIP)
    block_gas_limit: int = 0

    @property
    def address(self) -> bytes:
        return self.wallet.address

    @property
    def spendable(self) -> int:
        """The balance less what pending transactions may take of it."""
        return self.balance - self.pending.cost

    def watched(self, tx_hash: bytes) -> PendingTx | None:
        """The transaction of ours, pending or lost, that has a version with this hash."""
        return self.pending.with_hash(tx_hash) or self.lost.with_hash(tx_hash)

    def watched_hashes(self) -> list[bytes]:
        return [version.hash for txs in (self.pending, self.lost) for tx in txs for version in tx.versions]

    def was_mined(self, tx: PendingTx) -> None:
        (self.pending if tx in self.pending else self.lost).remove(tx)

    def was_lost(self, tx: PendingTx) -> None:
        self.pending.remove(tx)
        self.lost.add(tx)

    async def read(self, rpc: Rpc, block: Block) -> None:
        """Nonce, balance and fees as of `block`, in one request; by its hash, so that no other branch answers."""
        address = "0x" + self.address.hex()
        at = {"blockHash": block.hash}
        nonce, balance, tip, history = await rpc.batch(
            [
                Call("eth_getTransactionCount", (address, at)),
                Call("eth_getBalance", (address, at)),
                Call("eth_maxPriorityFeePerGas"),
                Call("eth_feeHistory", ("0x1", "latest", ())),
            ]
        )
        if isinstance(nonce, RpcError):
            raise trouble_of(nonce, "eth_getTransactionCount")
        if isinstance(balance, RpcError):
            raise trouble_of(balance, "eth_getBalance")
        self.nonce_floor = quantity(decode_result(nonce, str, "eth_getTransactionCount"))
        self._has(quantity(decode_result(balance, str, "eth_getBalance")))
        advised, base_fee = _DEFAULT_TIP, block.next_base_fee
        if not isinstance(tip, RpcError):
            advised = quantity(decode_result(tip, str, "eth_maxPriorityFeePerGas"))
        if not isinstance(history, RpcError):
            # The node's own forecast, last in the list: chains differ in how fast their base fee moves.
            fees = decode_result(history, _FeeHistory, "eth_feeHistory").baseFeePerGas
            base_fee = max(base_fee, quantity(fees[-1]) if fees else 0)
        self.market = Market(base_fee, advised)
        self.block_gas_limit = block.gas_limit

    async def read_balance(self, rpc: Rpc) -> None:
        """The balance now: it may have been filled up without a block."""
        self._has(quantity(await rpc.call("eth_getBalance", "0x" + self.address.hex(), "latest")))

    def _has(self, balance: int) -> None:
        self.balance = balance
        relayer_balance.labels("0x" + self.address.hex()).set(balance)
