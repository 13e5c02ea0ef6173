"""Choose the EIP-1559 fees that a transaction offers, up to the operator's ceiling."""

from decimal import Decimal
from typing import Final

import attrs
from web3 import Web3

from common.daemon.process import Fatal
from coordinatord.chain.rpc.errors import RpcError

GWEI: Final = 10**9
_DEFAULT_TIP: Final = GWEI
# A transaction offers this multiple of the base fee. The base fee rises by at most an eighth per full block, so twice
# the base fee suffices for five full blocks.
_BASE_FEE_FACTOR: Final = 2


@attrs.frozen(slots=True)
class FeeOptions:
    """Fees that the operator chose, in wei. A `max_fee` of None means no limit. A `tip` of None means the tip that the
    node proposes."""

    max_fee: int | None = None
    tip: int | None = None


@attrs.frozen(slots=True)
class Fees:
    """Fees per unit of gas, in wei: the chain's current base fee, and the fees that a transaction offers."""

    base_fee: int
    tip: int
    max_fee: int

    def replacement_for(self, max_fee: int, tip: int) -> "Fees":
        """Return fees that replace a transaction with `max_fee` and `tip`. Nodes require a rise of a tenth, so raise
        both by at least an eighth."""
        return attrs.evolve(self, max_fee=max(self.max_fee, max_fee * 9 // 8 + 1), tip=max(self.tip, tip * 9 // 8 + 1))


def current_fees(node: Web3, options: FeeOptions) -> Fees:
    """Return the fees to offer now. Raise Fatal when the ceiling is below the chain's current fees."""
    base = _read_base_fee(node)
    tip = _read_proposed_tip(node) if options.tip is None else options.tip
    if options.max_fee is not None and base + tip > options.max_fee:
        raise Fatal(
            f"the base fee of {format_gwei(base)} gwei and the tip of {format_gwei(tip)} gwei exceed --max-fee "
            f"{format_gwei(options.max_fee)}: wait for lower fees, or raise --max-fee"
        )
    max_fee = _BASE_FEE_FACTOR * base + tip
    return Fees(base, tip, max_fee if options.max_fee is None else min(max_fee, options.max_fee))


def format_gwei(wei: int) -> str:
    return f"{Decimal(wei) / GWEI:f}"


def format_ether(wei: int) -> str:
    return f"{Decimal(wei) / 10**18:.6f}"


def _read_base_fee(node: Web3) -> int:
    block = node.eth.get_block("latest")
    if "baseFeePerGas" not in block:
        raise Fatal("the chain has no base fee (EIP-1559), but the contracts require one")
    return block["baseFeePerGas"]


def _read_proposed_tip(node: Web3) -> int:
    try:
        return node.eth.max_priority_fee
    except RpcError:  # some nodes do not support the method
        return _DEFAULT_TIP
