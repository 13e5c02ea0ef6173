"""Send the transactions of a deployment or an admin action: sign, write to the journal, broadcast, wait.

    not written             → sign at the next nonce, write, broadcast
    written, not confirmed  → rebroadcast the same bytes until an attempt is mined deep enough
    confirmed               → skip

With `replace`, a pending step is signed again at the same nonce with a higher fee, and either attempt may be mined. The
run fails if a transaction of another program uses one of the nonces.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final

import attrs
from hexbytes import HexBytes
from web3 import Web3
from web3.types import TxParams, TxReceipt

from common.daemon.process import Fatal
from common.keccak import keccak256
from common.scalars import hex_of
from common.transactions import Transaction
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.signing.signers import TransactionSigner
from coordinatord.market.contracts import ContractCall, explain_revert
from coordinatord.market.fees import FeeOptions, Fees, current_fees, format_gwei
from coordinatord.market.journal import Attempt, DeploymentEntry, DeploymentJournal
from coordinatord.market.node import broadcast, read_code, read_nonce, read_receipt

Report = Callable[[str], None]
ContractAddresses = Mapping[str, str]  # of the deployed contracts, by name

# Maximum gas of one transaction (EIP-7825).
TX_GAS_CAP: Final = 1 << 24
_MAX_PENDING_TXS: Final = 16  # pending transactions per account that every node accepts
_REBROADCAST_INTERVAL_S: Final = 15.0
# Number of consecutive reads that must show a used nonce, because the nodes behind a load balancer may differ.
_MIN_NONCE_SIGHTINGS: Final = 3


@attrs.frozen(slots=True)
class SendingStep:
    """One transaction. `key` identifies the step in the journal. `creates` is the name of the contract that the step
    deploys. Steps of one stage are independent, and are confirmed together."""

    key: str
    stage: int
    creates: str | None
    build: Callable[[ContractAddresses], ContractCall]


@attrs.frozen(slots=True, kw_only=True)
class SendOptions:
    """Options for sending. A transaction is confirmed when its block is on the chain, with `confirmations` - 1 blocks
    above."""

    fees: FeeOptions = FeeOptions()
    confirmations: int = 1
    timeout_seconds: float = 900.0
    poll_seconds: float = 2.0
    replace: bool = False


@attrs.frozen(slots=True)
class Sender:
    """Sends steps from one account on one chain."""

    node: Web3
    signer: TransactionSigner
    chain_id: int
    options: SendOptions
    journal: DeploymentJournal
    report: Report

    def run(self, steps: Sequence[SendingStep]) -> None:
        """Send the steps, and return when all are confirmed. Raise Fatal with the failed step and the remedy."""
        self._unconfirm_reorged_steps(steps)
        for _, of_stage in groupby(steps, lambda step: step.stage):
            waiting, addresses = list(of_stage), self.addresses(steps)
            for start in range(0, len(waiting), _MAX_PENDING_TXS):
                self._send_together(waiting[start : start + _MAX_PENDING_TXS], addresses)

    def addresses(self, steps: Sequence[SendingStep]) -> dict[str, str]:
        """Return the addresses of the contracts that the confirmed steps created."""
        entries = ((step, self.journal.entries.get(step.key)) for step in steps if step.creates is not None)
        return {str(step.creates): entry.address for step, entry in entries if entry is not None and entry.address}

    def _unconfirm_reorged_steps(self, steps: Sequence[SendingStep]) -> None:
        """Mark each step whose transaction a reorg removed as unconfirmed, so that the transaction is rebroadcast."""
        for step in steps:
            entry = self.journal.entries.get(step.key)
            if entry is not None and entry.block is not None and self._find_receipt(entry) is None:
                self.report(f"{step.key}: a reorg removed {entry.mined}: broadcasting the step again")
                self.journal.write(step.key, attrs.evolve(entry, block=None, address=None, mined=None))

    def _send_together(self, steps: Sequence[SendingStep], addresses: ContractAddresses) -> None:
        for step in steps:
            entry = self.journal.entries.get(step.key)
            if entry is None:
                self._sign_step(step, step.build(addresses))
            elif entry.block is None and self.options.replace and self._find_receipt(entry) is None:
                self._replace_attempt(step, entry, step.build(addresses))
            elif entry.block is None:
                self._broadcast_again(step, entry)
        self._wait_for_receipts(steps)

    def _sign_step(self, step: SendingStep, call: ContractCall) -> None:
        fees = current_fees(self.node, self.options.fees)
        if call.to is not None and not read_code(self.node, call.to):
            # A call to an address without code would succeed without effect.
            raise Retryable(
                "chain_unreachable", f"{step.key}: the node has no contract at {call.to}: wait if the node is behind"
            )
        gas = gas_limit_for(self.node, self.signer.address, call)
        nonce = max(read_nonce(self.node, self.signer.address, "pending"), self.journal.last_nonce() + 1)
        attempt = self._sign_attempt(call, nonce, gas, fees)
        self.journal.write(step.key, DeploymentEntry(nonce, (attempt,)))
        self.report(f"{step.key}: {attempt.hash} (nonce {nonce}, {gas} gas, at most {format_gwei(fees.max_fee)} gwei)")
        try:
            broadcast(self.node, bytes.fromhex(attempt.raw[2:]))
        except RpcError as error:
            self._raise_rejected(step, error)

    def _replace_attempt(self, step: SendingStep, entry: DeploymentEntry, call: ContractCall) -> None:
        before = entry.attempts[-1]
        fees = current_fees(self.node, self.options.fees).replacement_for(before.max_fee, before.tip)
        ceiling = self.options.fees.max_fee
        if ceiling is not None and fees.max_fee > ceiling:
            raise Fatal(
                f"{step.key} can only be replaced at {format_gwei(fees.max_fee)} gwei, "
                f"above --max-fee {format_gwei(ceiling)}: raise --max-fee"
            )
        attempt = self._sign_attempt(call, entry.nonce, before.gas, fees)
        self.journal.write(step.key, attrs.evolve(entry, attempts=(*entry.attempts, attempt)))
        self.report(f"{step.key}: {attempt.hash} replaces {before.hash}, at most {format_gwei(fees.max_fee)} gwei")
        self._broadcast_again(step, self.journal.entries[step.key])

    def _sign_attempt(self, call: ContractCall, nonce: int, gas: int, fees: Fees) -> Attempt:
        to = None if call.to is None else bytes.fromhex(call.to[2:])
        transaction = Transaction(self.chain_id, nonce, fees.tip, fees.max_fee, gas, to, 0, call.data)
        raw = self.signer.sign(transaction)
        return Attempt(transaction_hash_of(raw), hex_of(raw), gas, fees.max_fee, fees.tip)

    def _broadcast_again(self, step: SendingStep, entry: DeploymentEntry) -> None:
        try:
            broadcast(self.node, bytes.fromhex(entry.attempts[-1].raw[2:]))
        except RpcError as error:
            # An attempt was mined, or the node prefers an earlier attempt. The receipts show which attempt is mined.
            if error.kind not in (RpcErrorKind.NONCE_TOO_LOW, RpcErrorKind.UNDERPRICED):
                self._raise_rejected(step, error)

    def _raise_rejected(self, step: SendingStep, error: RpcError) -> None:
        remedy = {
            RpcErrorKind.NO_FUNDS: f"send native funds to {self.signer.address} and run again",
            RpcErrorKind.UNDERPRICED: "run again with --replace and a higher --max-fee",
        }.get(error.kind, "run again to rebroadcast the transaction")
        raise Fatal(f"{step.key}: the node rejects the transaction ({error}); {remedy}") from error

    def _wait_for_receipts(self, steps: Sequence[SendingStep]) -> None:
        waiting = [step for step in steps if self.journal.entries[step.key].block is None]
        timer = _Timer(self.options.timeout_seconds)
        sightings: dict[str, int] = {}
        while waiting:
            rebroadcast = timer.start_due_rebroadcast()
            try:
                head = self.node.eth.block_number
                waiting = [
                    step for step in waiting if not self._record_if_confirmed(step, head, sightings, rebroadcast)
                ]
            except Retryable as error:
                self.report(f"waiting: {error}")
            if waiting:
                if timer.has_expired():
                    raise self._not_mined_error(waiting[0])
                time.sleep(self.options.poll_seconds)

    def _record_if_confirmed(self, step: SendingStep, head: int, sightings: dict[str, int], rebroadcast: bool) -> bool:
        """If the step is confirmed, write it to the journal and return True. Otherwise return False, and with
        `rebroadcast` broadcast the step's transaction again."""
        entry = self.journal.entries[step.key]
        receipt = self._find_receipt(entry)
        if receipt is None:
            self._watch_nonce(step, entry, head, sightings)
            if rebroadcast:
                self._broadcast_again(step, entry)
            return False
        block = receipt["blockNumber"]
        if head < block + self.options.confirmations - 1:
            return False
        mined = receipt["transactionHash"].to_0x_hex()
        if receipt["status"] != 1:
            self.journal.write(step.key, None)
            raise Fatal(f"{step.key}: {mined} reverted in block {block}; run again to send a new transaction")
        address = str(receipt["contractAddress"]) if step.creates is not None else None
        self.journal.write(step.key, attrs.evolve(entry, block=block, address=address, mined=mined))
        return True

    def _watch_nonce(self, step: SendingStep, entry: DeploymentEntry, head: int, sightings: dict[str, int]) -> None:
        """If another transaction has used the step's nonce, remove the step from the journal and raise Fatal."""
        confirmed_block = max(0, head - self.options.confirmations + 1)
        if (
            read_nonce(self.node, self.signer.address, confirmed_block) <= entry.nonce
            or self._find_receipt(entry) is not None
        ):
            sightings.pop(step.key, None)
            return
        sightings[step.key] = sightings.get(step.key, 0) + 1
        if sightings[step.key] < _MIN_NONCE_SIGHTINGS:
            return
        self.journal.write(step.key, None)
        raise Fatal(
            f"{step.key}: another transaction of {self.signer.address} used nonce {entry.nonce}, so that "
            f"{entry.attempts[-1].hash} can never be mined. Stop other programs that use the account, and run again"
        )

    def _find_receipt(self, entry: DeploymentEntry) -> TxReceipt | None:
        return next(
            (found for found in map(partial(read_receipt, self.node), _attempt_hashes(entry)) if found is not None),
            None,
        )

    def _not_mined_error(self, step: SendingStep) -> Fatal:
        last = self.journal.entries[step.key].attempts[-1]
        base = current_fees(self.node, FeeOptions()).base_fee
        return Fatal(
            f"{step.key}: {last.hash} is not confirmed after {self.options.timeout_seconds:g} s. It offers at most "
            f"{format_gwei(last.max_fee)} gwei; the base fee is {format_gwei(base)}. Run again to keep waiting, or "
            "with --replace to sign the transaction again at the same nonce with a higher fee"
        )


def gas_limit_for(node: Web3, sender: str, call: ContractCall) -> int:
    """Return the gas limit: a fifth above the node's estimate. Raise Fatal when the contract would revert."""
    try:
        needed = node.eth.estimate_gas(_unsigned_transaction(sender, call))
    except RpcError as error:
        raise Fatal(f"{call.description}: {explain_refusal(error, sender)}") from error
    if needed > TX_GAS_CAP:
        raise Fatal(f"{call.description}: the call needs {needed} gas, but a transaction may use at most {TX_GAS_CAP}")
    return min(needed * 6 // 5, TX_GAS_CAP)


def _unsigned_transaction(sender: str, call: ContractCall) -> TxParams:
    transaction: TxParams = {"from": sender, "data": HexBytes(call.data)}
    return transaction if call.to is None else {**transaction, "to": call.to}


def explain_refusal(error: RpcError, sender: str) -> str:
    match error.kind:
        case RpcErrorKind.REVERTED:
            return f"the contract would reject the call: {explain_revert(error.data) if error.data else error.message}"
        case RpcErrorKind.NO_FUNDS:
            return f"{sender} has too few native funds"
        case _:
            return f"the node cannot simulate the call: {error}"


def transaction_hash_of(raw: bytes) -> str:
    return hex_of(keccak256(raw))


def _attempt_hashes(entry: DeploymentEntry) -> Iterator[str]:
    return (attempt.hash for attempt in reversed(entry.attempts))


@attrs.define(slots=True)
class _Timer:
    _seconds: float
    _started: float = attrs.field(factory=time.monotonic)
    _last_broadcast: float = attrs.field(factory=time.monotonic)

    def has_expired(self) -> bool:
        return time.monotonic() - self._started > self._seconds

    def start_due_rebroadcast(self) -> bool:
        """Return True if a rebroadcast is due, and start the interval until the next one."""
        if time.monotonic() - self._last_broadcast < _REBROADCAST_INTERVAL_S:
            return False
        self._last_broadcast = time.monotonic()
        return True
