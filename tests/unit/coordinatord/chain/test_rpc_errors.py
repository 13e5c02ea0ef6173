"""Answers of real chain clients to eth_sendRawTransaction, verbatim, and how each is classified.

Texts come from the sources of geth, reth, Nethermind (older releases answer with the names of results), Besu and
Erigon, and from a running anvil 1.7.1.
"""

import time
from typing import Final

import pytest

from coordinatord.chain.rpc.errors import RpcErrorKind, classify_error

WORDINGS: Final = {
    RpcErrorKind.TOO_MUCH_GAS: [
        ("geth", -32000, "exceeds block gas limit"),
        ("geth", -32000, "transaction gas limit too high (cap: 16777216, tx: 26700000)"),
        ("geth", -32000, "tx fee (1.32 ether) exceeds the configured cap (1.00 ether)"),
        ("reth", -32003, "exceeds block gas limit"),
        ("reth", -32003, "exceeds max transaction gas limit"),
        ("reth", -32003, "tx fee (1320000000000000000 wei) exceeds the configured cap (1000000000000000000 wei)"),
        ("reth", -32003, "transaction's gas limit 61000000 exceeds block's gas limit 60000000"),
        ("reth", -32003, "transaction's gas limit 26700000 exceeds maximum per-transaction gas limit 16777216"),
        ("reth", -32003, "gas limit too high"),
        ("revm", -32000, "transaction gas limit (26700000) is greater than the cap (16777216)"),
        ("revm", -32000, "transaction rejected before execution: transaction gas limit is greater than the cap"),
        ("revm", -32000, "caller gas limit exceeds the block gas limit"),
        ("Nethermind", -32010, "gas limit reached, Gas limit: 60000000, gas limit of rejected tx: 61000000"),
        ("Nethermind", -32010, "GasLimitExceeded, Gas limit: 60000000, gas limit of rejected tx: 61000000"),
        (
            "Nethermind",
            -32010,
            "transaction invalid, TxGasLimitCapExceeded: Gas limit 26700000 exceeded cap of 16777216.",
        ),
        ("Besu", -32005, "Transaction gas limit exceeds block gas limit"),
        ("Besu", -32005, "Transaction gas limit cap exceeded"),
        ("Besu", -32000, "Transaction fee cap exceeded"),
        ("Erigon", -32000, "INVALID: gas limit is too high"),
        ("Erigon", -32000, "tx fee (1.32 ether) exceeds the configured cap (1.00 ether)"),
        ("anvil", -32000, "intrinsic gas too high -- tx.gas_limit > env.cfg.tx_gas_limit_cap"),
        ("anvil", -32000, "intrinsic gas too high -- tx.gas_limit > env.block.gas_limit"),
        (
            "anvil",
            -32000,
            "Transaction gas limit is greater than the block gas limit, gas_limit: 26700000, cap: 16777216",
        ),
    ],
    RpcErrorKind.OVERSIZED: [
        ("geth", -32000, "oversized data: transaction size 131700, limit 131072"),
        ("reth", -32003, "oversized data: transaction size 131700, limit 131072"),
        ("Nethermind", -32010, "transaction too large"),
        ("Nethermind", -32010, "MaxTxSizeExceeded"),
        ("Erigon", -32000, "INVALID: oversized data"),
        ("Erigon", -32000, "INVALID: RLPTooLong"),
    ],
    RpcErrorKind.TOO_LITTLE_GAS: [
        ("geth", -32000, "intrinsic gas too low: gas 20000, minimum needed 21000"),
        ("geth", -32000, "insufficient gas for floor data gas cost: gas 21000, minimum needed 61000"),
        ("reth", -32000, "intrinsic gas too low"),
        ("Besu", -32003, "Intrinsic gas exceeds gas limit"),
        ("Erigon", -32000, "INVALID: IntrinsicGas"),
        ("anvil", -32000, "intrinsic gas too low"),
    ],
    RpcErrorKind.UNDERPRICED: [
        ("geth", -32000, "replacement transaction underpriced"),
        ("geth", -32000, "transaction underpriced"),
        ("geth", -32000, "transaction gas price below minimum: gas tip cap 1, minimum needed 1000000"),
        ("reth", -32000, "insufficient gas price to replace existing transaction"),
        ("reth", -32000, "transaction feeCap 7 below chain minimum"),
        ("reth", -32000, "transaction priority fee below minimum required priority fee 1000000"),
        ("reth", -32000, "max fee per gas less than block base fee"),
        ("Nethermind", -32010, "replacement transaction underpriced, Max replacement fee bump not reached"),
        ("Nethermind", -32010, "ReplacementNotAllowed"),
        ("Nethermind", -32010, "FeeTooLow, MaxFeePerGas too low. MaxFeePerGas: 1, BaseFee: 7"),
        ("Besu", -32000, "Replacement transaction underpriced"),
        ("Besu", -32009, "Gas price below configured minimum gas price"),
        ("Besu", -32009, "Gas price below current base fee"),
        ("Erigon", -32000, "FEE_TOO_LOW: fee too low"),
        ("Erigon", -32000, "INVALID: could not replace existing tx"),
        ("anvil", -32003, "replacement transaction underpriced"),
        ("anvil", -32003, "max fee per gas less than block base fee"),
    ],
    RpcErrorKind.NONCE_TOO_LOW: [
        ("geth", -32000, "nonce too low: next nonce 8, tx nonce 7"),
        ("reth", -32000, "nonce too low: next nonce 8, tx nonce 7"),
        ("Nethermind", -32010, "nonce too low, Current nonce: 8, nonce of rejected tx: 7"),
        ("Nethermind", -32010, "OldNonce, Current nonce: 8, nonce of rejected tx: 7"),
        ("Besu", -32001, "Nonce too low"),
        ("Erigon", -32000, "INVALID: nonce too low"),
        ("anvil", -32003, "nonce too low"),
    ],
    RpcErrorKind.NONCE_TOO_HIGH: [
        ("geth", -32000, "nonce too high: tx nonce 9, gapped nonce 8"),
        ("geth", -32000, "gapped-nonce tx from delegated accounts"),
        ("reth", -32000, "nonce too high"),
        ("Nethermind", -32010, "NonceGap, Future nonce. Expected nonce: 8"),
        ("Nethermind", -32010, "nonce too far in future"),
        ("Besu", -32006, "Nonce too high"),
        ("Besu", -32000, "Transaction nonce is too distant from current sender nonce"),
        ("Besu", -32000, "An invalid transaction with a lower nonce exists"),
    ],
    RpcErrorKind.ALREADY_KNOWN: [
        ("geth", -32000, "already known"),
        ("reth", -32000, "already known"),
        ("reth", -32000, "[0xab…]: already imported"),
        ("Nethermind", -32010, "AlreadyKnown"),
        ("Besu", -32000, "Known transaction"),
        ("Erigon", -32000, "ALREADY_EXISTS: already known"),
        ("Erigon", -32000, "INVALID: existing txn with same hash"),
        ("anvil", -32003, "transaction already imported"),
    ],
    RpcErrorKind.NO_FUNDS: [
        ("geth", -32000, "insufficient funds for gas * price + value: balance 1, tx cost 2, overshot 1"),
        ("reth", -32003, "insufficient funds for gas * price + value: have 1 want 2"),
        ("reth", -32003, "transaction overdraws from account, balance: 1, cost: 2"),
        ("Nethermind", -32010, "InsufficientFunds, Account balance: 1, cumulative cost: 2"),
        ("Besu", -32004, "Upfront cost exceeds account balance"),
        ("Erigon", -32000, "INVALID: insufficient funds"),
        ("anvil", -32003, "Insufficient funds for gas * price + value"),
    ],
    RpcErrorKind.POOL_FULL: [
        ("geth", -32000, "txpool is full"),
        ("geth", -32000, "account limit exceeded: pooled 64 txs"),
        ("reth", -32000, "transaction discarded outright due to pool size constraints"),
        ("Erigon", -32000, "INTERNAL_ERROR: pending sub-pool is full"),
    ],
    RpcErrorKind.UNSUPPORTED: [
        ("geth", -32000, "transaction type not supported: type 2 rejected, pool not yet in London"),
        ("geth", -32000, "transaction type not supported: tx type 2 not supported by this pool"),
        ("reth", -32000, "transaction type not supported"),
        ("reth", -32000, "invalid chain ID"),
        ("Nethermind", -32010, "unsupported transaction type"),
        ("Nethermind", -32010, "transaction invalid, InvalidTxChainId: Expected 1, got 5."),
        ("Besu", -32602, "Invalid transaction type"),
        ("Besu", -32000, "Wrong chainId"),
        ("Erigon", -32000, "INVALID: fork supporting this transaction type is not activated yet"),
        ("Erigon", -32000, "invalid chain id, expected: 1 got: 5"),
        ("anvil", -32003, "invalid chain id for signer"),
    ],
    RpcErrorKind.REFUSED: [
        ("geth", -32601, "the method eth_sendRawTransaction does not exist/is not available"),
        ("Besu", -32604, "Method not enabled"),
        ("Besu", -40100, "Unauthorized"),
    ],
    RpcErrorKind.INTERNAL: [
        ("any", -32603, "Internal error"),
        ("Besu", -32000, "Plugin has marked the transaction as invalid"),
        ("any", -32000, "no wording that anybody has seen"),
    ],
    RpcErrorKind.RATE_LIMITED: [("any", -32005, "limit exceeded"), ("any", -32000, "Too Many Requests")],
    RpcErrorKind.REVERTED: [("any", 3, "execution reverted: transaction too large, nonce too low")],
}


@pytest.mark.parametrize(
    ("kind", "client", "code", "message"),
    [(kind, *wording) for kind, wordings in WORDINGS.items() for wording in wordings],
)
def test_refusal_is_classified_alike_for_every_client(kind: RpcErrorKind, client: str, code: int, message: str) -> None:
    assert classify_error({"code": code, "message": message}).kind is kind, client


@pytest.mark.parametrize("words", ["nonce already ", "max fee less than ", "transaction size ", "exceeds max ", "fee "])
def test_long_message_is_cut_before_it_is_read(words: str) -> None:
    message = words * (100_000 // len(words))
    started = time.process_time()
    error = classify_error({"code": -32000, "message": message})
    assert time.process_time() - started < 0.1  # seconds; matching against an unbounded text would take longer
    assert len(error.message) == 1_000


def test_message_that_is_no_text_is_left_out() -> None:
    error = classify_error({"code": 3, "message": [["nonce too low"]]})
    assert (error.message, error.kind) == ("", RpcErrorKind.REVERTED)


def test_revert_data_is_cut() -> None:
    assert (
        len(classify_error({"code": 3, "message": "execution reverted", "data": "0x" + "ab" * 1_000_000}).data) == 4096
    )
