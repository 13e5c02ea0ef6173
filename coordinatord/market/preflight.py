"""Checks and costs of a deployment, before anything is signed."""

from collections.abc import Sequence
from typing import Final

import attrs
from hexbytes import HexBytes
from web3 import Web3

from common.checks import CheckRow, check_lines, compared, fact, wrong_names
from common.daemon.process import Fatal
from common.text_table import grid, terminal_columns
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.market.contracts import ContractCall
from coordinatord.market.deployment import REGISTRIES
from coordinatord.market.fees import Fees, in_ether, in_gwei
from coordinatord.market.node import code_at
from coordinatord.market.sending import SendingStep, gas_for
from coordinatord.market.terms import MarketTerms
from coordinatord.market.token_checks import TokenFacts, check_token

# PUSH0 TLOAD PUSH0 MSTORE PUSH1 32 PUSH0 RETURN: creation code that returns a word of transient storage.
_READS_TRANSIENT_STORAGE: Final = HexBytes("0x5f5c5f5260205ff3")
# Upper bound of an admin call's gas without its data: the transaction, two new slots and an event.
_GAS_OF_A_SETTING: Final = 90_000
_GAS_OF_A_BYTE: Final = 16 + 8  # as calldata, and in the event
# Stands for a contract that is not deployed yet, in calls that are only estimated.
_PLACEHOLDER: Final = "0x" + "11" * 20


@attrs.frozen(slots=True)
class EstimatedCost:
    """Gas of one step."""

    call: ContractCall
    gas: int


def check_chain_and_token(node: Web3, terms: MarketTerms) -> tuple[TokenFacts, list[CheckRow]]:
    """Compare chain and token with the terms. Raise Fatal with the whole table when anything differs."""
    chain_id = node.eth.chain_id
    if chain_id != terms.chain_id:
        raise Fatal(f"chain_id: the terms are for chain {terms.chain_id}, the RPC endpoint serves {chain_id}")
    facts, rows = check_token(node, terms)
    rows = [compared("chain", chain_id, terms.chain_id), _transient_storage(node), *rows]
    if terms.owner != terms.treasury and not code_at(node, terms.owner):
        rows.append(fact("owner", f"{terms.owner} is an account without code: one key, no multisig"))
    wrong = wrong_names(rows)
    if wrong:
        raise Fatal(f"{check_lines(rows, terminal_columns())}\n\nnothing was sent: {'; '.join(wrong)}")
    return facts, rows


def costs(node: Web3, deployer: str, steps: Sequence[SendingStep]) -> list[EstimatedCost]:
    """Estimate the gas of each step: by the node for deployments, by the length of the call for the rest."""
    addresses = dict.fromkeys(REGISTRIES, _PLACEHOLDER)
    calls = [step.build(addresses) for step in steps]
    return [
        EstimatedCost(
            call,
            gas_for(node, deployer, call) if call.to is None else _GAS_OF_A_SETTING + _GAS_OF_A_BYTE * len(call.data),
        )
        for call in calls
    ]


def plan(of: Sequence[EstimatedCost], fees: Fees, balance: int, deployer: str) -> str:
    """Return the transactions to be sent and their costs, as text."""
    gas = sum(cost.gas for cost in of)
    lines = [(f"{n}.", cost.call.words, f"{cost.gas} gas") for n, cost in enumerate(of, 1)]
    return "\n".join(
        (
            *grid(lines, terminal_columns(), alone=2),
            "",
            f"in all {gas} gas: {in_ether(gas * (fees.base + fees.tip))} at the fees of now "
            f"({in_gwei(fees.base)} gwei and a tip of {in_gwei(fees.tip)}), {in_ether(gas * fees.max_fee)} at most",
            f"{deployer} has {in_ether(balance)}",
        )
    )


def require_funds(of: Sequence[EstimatedCost], fees: Fees, balance: int, deployer: str) -> None:
    needed = sum(cost.gas for cost in of) * fees.max_fee
    if balance < needed:
        raise Fatal(
            f"{deployer} has {in_ether(balance)} of native funds, and the deployment may cost {in_ether(needed)}: "
            "send it funds, or lower --max-fee"
        )


def _transient_storage(node: Web3) -> CheckRow:
    try:
        node.eth.call({"data": _READS_TRANSIENT_STORAGE})
        found = True
    except RpcError as error:
        if error.meaning not in (Meaning.REVERTED, Meaning.INTERNAL):
            raise
        found = False
    return compared("chain: has transient storage (the Cancun rules)", found, True)
