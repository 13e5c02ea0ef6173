"""Check a deployment and estimate its costs before anything is signed."""

from collections.abc import Sequence
from typing import Final

import attrs
from hexbytes import HexBytes
from web3 import Web3

from common.checks import CheckRow, check_lines, comparison_row, fact, wrong_names
from common.daemon.process import Fatal
from common.text_table import grid_lines, terminal_columns
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.market.contracts import ContractCall
from coordinatord.market.deployment import REGISTRIES
from coordinatord.market.fees import Fees, format_ether, format_gwei
from coordinatord.market.node import read_code
from coordinatord.market.sending import SendingStep, gas_limit_for
from coordinatord.market.terms import MarketTerms
from coordinatord.market.token_checks import TokenFacts, check_token

# PUSH0 TLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN: creation code that returns a word of transient storage.
_TRANSIENT_STORAGE_PROBE: Final = HexBytes("0x5f5c5f5260205ff3")
# Upper bound of an admin call's gas without its data: the transaction, two new slots and an event.
_MAX_SETTING_GAS: Final = 90_000
_GAS_PER_BYTE: Final = 16 + 8  # a byte of the call data, and the same byte in the event
# Placeholder for contracts that are not deployed yet, in calls whose gas is estimated.
_PLACEHOLDER_ADDRESS: Final = "0x" + "11" * 20


@attrs.frozen(slots=True)
class EstimatedCost:
    """Call of one step, and its estimated gas."""

    call: ContractCall
    gas: int


def check_chain_and_token(node: Web3, terms: MarketTerms) -> tuple[TokenFacts, list[CheckRow]]:
    """Compare the chain and the token with the terms. Raise Fatal with the table of checks when anything differs."""
    chain_id = node.eth.chain_id
    if chain_id != terms.chain_id:
        raise Fatal(f"chain_id: the terms are for chain {terms.chain_id}, but the RPC endpoint serves chain {chain_id}")
    facts, rows = check_token(node, terms)
    rows = [comparison_row("chain", chain_id, terms.chain_id), _check_transient_storage(node), *rows]
    if terms.owner != terms.treasury and not read_code(node, terms.owner):
        rows.append(fact("owner", f"{terms.owner} is an account without code: a single key, not a multisig"))
    wrong = wrong_names(rows)
    if wrong:
        raise Fatal(f"{check_lines(rows, terminal_columns())}\n\nnothing was sent: {'; '.join(wrong)}")
    return facts, rows


def estimate_costs(node: Web3, deployer: str, steps: Sequence[SendingStep]) -> list[EstimatedCost]:
    """Estimate the gas of each step. The node estimates deployments. Other calls are estimated from the length
    of their data."""
    addresses = dict.fromkeys(REGISTRIES, _PLACEHOLDER_ADDRESS)
    calls = [step.build(addresses) for step in steps]
    return [
        EstimatedCost(
            call,
            gas_limit_for(node, deployer, call)
            if call.to is None
            else _MAX_SETTING_GAS + _GAS_PER_BYTE * len(call.data),
        )
        for call in calls
    ]


def format_plan(costs: Sequence[EstimatedCost], fees: Fees, balance: int, deployer: str) -> str:
    """Return the transactions to be sent and their costs, as text."""
    gas = sum(cost.gas for cost in costs)
    lines = [(f"{n}.", cost.call.description, f"{cost.gas} gas") for n, cost in enumerate(costs, 1)]
    return "\n".join(
        (
            *grid_lines(lines, terminal_columns(), own_line_cells=2),
            "",
            f"total {gas} gas: {format_ether(gas * (fees.base_fee + fees.tip))} at the current fees "
            f"({format_gwei(fees.base_fee)} gwei and a tip of {format_gwei(fees.tip)} gwei), "
            f"{format_ether(gas * fees.max_fee)} at most",
            f"{deployer} has {format_ether(balance)}",
        )
    )


def require_funds(costs: Sequence[EstimatedCost], fees: Fees, balance: int, deployer: str) -> None:
    needed = sum(cost.gas for cost in costs) * fees.max_fee
    if balance < needed:
        raise Fatal(
            f"{deployer} has {format_ether(balance)} of native funds, and the deployment may cost "
            f"{format_ether(needed)}: send native funds to the account, or lower --max-fee"
        )


def _check_transient_storage(node: Web3) -> CheckRow:
    try:
        node.eth.call({"data": _TRANSIENT_STORAGE_PROBE})
        found = True
    except RpcError as error:
        if error.kind not in (RpcErrorKind.REVERTED, RpcErrorKind.INTERNAL):
            raise
        found = False
    return comparison_row("chain: has transient storage (the Cancun rules)", found, True)
