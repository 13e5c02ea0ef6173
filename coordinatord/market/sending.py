"""Send the transactions of a deployment or of an admin: sign, write to the journal, broadcast, wait.

    not written             → sign at the next nonce, write, broadcast
    written, not confirmed  → rebroadcast the same bytes until an attempt is mined deep enough
    confirmed               → skip

With `replace`, a pending step is signed again at the same nonce for a higher fee, and either attempt may be mined. The
run ends if a foreign transaction uses one of the nonces.
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
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.chain.signing.signers import TransactionSigner
from coordinatord.market.contracts import ContractCall, explained
from coordinatord.market.fees import FeeOptions, Fees, current_fees, in_gwei
from coordinatord.market.journal import Attempt, DeploymentEntry, DeploymentJournal
from coordinatord.market.node import broadcast, code_at, nonce_of, receipt_of

Say = Callable[[str], None]
Addresses = Mapping[str, str]  # of the deployed contracts, by name

# EIP-7825.
TX_GAS_CAP: Final = 1 << 24
_MAX_PENDING: Final = 16  # pending transactions per account that every node accepts
_REBROADCAST_S: Final = 15.0
_NONCE_SIGHTINGS: Final = 3  # in a row, because a load balancer's nodes may differ


@attrs.frozen(slots=True)
class SendingStep:
    """One transaction. `key` names it in the journal, `creates` is the contract that it deploys. Steps of one stage are
    independent, and are confirmed together."""

    key: str
    stage: int
    creates: str | None
    build: Callable[[Addresses], ContractCall]


@attrs.frozen(slots=True, kw_only=True)
class SendOptions:
    """A transaction is confirmed when the chain has its block and `confirmations` - 1 blocks above it."""

    fees: FeeOptions = FeeOptions()
    confirmations: int = 1
    timeout_seconds: float = 900.0
    poll_seconds: float = 2.0
    replace: bool = False


@attrs.frozen(slots=True)
class Sender:
    """Runs steps as one account on one chain."""

    node: Web3
    signer: TransactionSigner
    chain_id: int
    options: SendOptions
    journal: DeploymentJournal
    say: Say

    def run(self, steps: Sequence[SendingStep]) -> None:
        """Send the steps. Return when all are confirmed, otherwise raise Fatal with the step and the remedy."""
        self._forget_reorged(steps)
        for _, of_stage in groupby(steps, lambda step: step.stage):
            waiting, addresses = list(of_stage), self.addresses(steps)
            for start in range(0, len(waiting), _MAX_PENDING):
                self._run_together(waiting[start : start + _MAX_PENDING], addresses)

    def addresses(self, steps: Sequence[SendingStep]) -> dict[str, str]:
        """Return the addresses of the contracts that the confirmed steps created."""
        entries = ((step, self.journal.entries.get(step.key)) for step in steps if step.creates is not None)
        return {str(step.creates): entry.address for step, entry in entries if entry is not None and entry.address}

    def _forget_reorged(self, steps: Sequence[SendingStep]) -> None:
        """Mark steps as unconfirmed if a reorg removed them after an earlier run, so that they are rebroadcast."""
        for step in steps:
            entry = self.journal.entries.get(step.key)
            if entry is not None and entry.block is not None and self._receipt(entry) is None:
                self.say(f"{step.key}: {entry.mined} is not on the chain any more; it is broadcast again")
                self.journal.write(step.key, attrs.evolve(entry, block=None, address=None, mined=None))

    def _run_together(self, steps: Sequence[SendingStep], addresses: Addresses) -> None:
        for step in steps:
            entry = self.journal.entries.get(step.key)
            if entry is None:
                self._sign(step, step.build(addresses))
            elif entry.block is None and self.options.replace and self._receipt(entry) is None:
                self._replace(step, entry, step.build(addresses))
            elif entry.block is None:
                self._broadcast_again(step, entry)
        self._confirm(steps)

    def _sign(self, step: SendingStep, call: ContractCall) -> None:
        fees = current_fees(self.node, self.options.fees)
        if call.to is not None and not code_at(self.node, call.to):
            # A call of an address without code would succeed without effect.
            raise Retryable("chain_unreachable", f"{step.key}: the node has no contract at {call.to}: is it behind?")
        gas = gas_for(self.node, self.signer.address, call)
        nonce = max(nonce_of(self.node, self.signer.address, "pending"), self.journal.last_nonce() + 1)
        attempt = self._signed(call, nonce, gas, fees)
        self.journal.write(step.key, DeploymentEntry(nonce, (attempt,)))
        self.say(f"{step.key}: {attempt.hash} (nonce {nonce}, {gas} gas, at most {in_gwei(fees.max_fee)} gwei)")
        try:
            broadcast(self.node, bytes.fromhex(attempt.raw[2:]))
        except RpcError as error:
            self._refused(step, error)

    def _replace(self, step: SendingStep, entry: DeploymentEntry, call: ContractCall) -> None:
        before = entry.attempts[-1]
        fees = current_fees(self.node, self.options.fees).raised_above(before.max_fee, before.tip)
        ceiling = self.options.fees.ceiling
        if ceiling is not None and fees.max_fee > ceiling:
            raise Fatal(
                f"{step.key} can only be replaced at {in_gwei(fees.max_fee)} gwei, above --max-fee {in_gwei(ceiling)}"
            )
        attempt = self._signed(call, entry.nonce, before.gas, fees)
        self.journal.write(step.key, attrs.evolve(entry, attempts=(*entry.attempts, attempt)))
        self.say(f"{step.key}: {attempt.hash} in the place of {before.hash}, at most {in_gwei(fees.max_fee)} gwei")
        self._broadcast_again(step, self.journal.entries[step.key])

    def _signed(self, call: ContractCall, nonce: int, gas: int, fees: Fees) -> Attempt:
        to = None if call.to is None else bytes.fromhex(call.to[2:])
        transaction = Transaction(self.chain_id, nonce, fees.tip, fees.max_fee, gas, to, 0, call.data)
        raw = self.signer.sign(transaction)
        return Attempt(hash_of(raw), hex_of(raw), gas, fees.max_fee, fees.tip)

    def _broadcast_again(self, step: SendingStep, entry: DeploymentEntry) -> None:
        try:
            broadcast(self.node, bytes.fromhex(entry.attempts[-1].raw[2:]))
        except RpcError as error:
            # An attempt was mined, or the node keeps an earlier attempt: the receipts decide.
            if error.meaning not in (Meaning.NONCE_TOO_LOW, Meaning.UNDERPRICED):
                self._refused(step, error)

    def _refused(self, step: SendingStep, error: RpcError) -> None:
        what_next = {
            Meaning.NO_FUNDS: f"send native funds to {self.signer.address} and run again",
            Meaning.UNDERPRICED: "run again with --replace and a higher --max-fee",
        }.get(error.meaning, "run again: it is broadcast once more")
        raise Fatal(f"{step.key}: the node does not take the transaction ({error}); {what_next}") from error

    def _confirm(self, steps: Sequence[SendingStep]) -> None:
        waiting = [step for step in steps if self.journal.entries[step.key].block is None]
        timer = _Timer(self.options.timeout_seconds)
        sightings: dict[str, int] = {}
        while waiting:
            again = timer.rebroadcast_is_due()
            try:
                head = self.node.eth.block_number
                waiting = [step for step in waiting if not self._confirmed(step, head, sightings, again)]
            except Retryable as silence:
                self.say(f"waiting: {silence}")
            if waiting:
                if timer.ended():
                    raise self._not_mined(waiting[0])
                time.sleep(self.options.poll_seconds)

    def _confirmed(self, step: SendingStep, head: int, sightings: dict[str, int], again: bool) -> bool:
        entry = self.journal.entries[step.key]
        receipt = self._receipt(entry)
        if receipt is None:
            self._watch_nonce(step, entry, head, sightings)
            if again:
                self._broadcast_again(step, entry)
            return False
        block = receipt["blockNumber"]
        if head < block + self.options.confirmations - 1:
            return False
        mined = receipt["transactionHash"].to_0x_hex()
        if receipt["status"] != 1:
            self.journal.write(step.key, None)
            raise Fatal(f"{step.key}: {mined} reverted in block {block}; run again to send it")
        address = str(receipt["contractAddress"]) if step.creates is not None else None
        self.journal.write(step.key, attrs.evolve(entry, block=block, address=address, mined=mined))
        return True

    def _watch_nonce(self, step: SendingStep, entry: DeploymentEntry, head: int, sightings: dict[str, int]) -> None:
        deep = max(0, head - self.options.confirmations + 1)
        if nonce_of(self.node, self.signer.address, deep) <= entry.nonce or self._receipt(entry) is not None:
            sightings.pop(step.key, None)
            return
        sightings[step.key] = sightings.get(step.key, 0) + 1
        if sightings[step.key] < _NONCE_SIGHTINGS:
            return
        self.journal.write(step.key, None)
        raise Fatal(
            f"{step.key}: another transaction of {self.signer.address} used nonce {entry.nonce}, so that "
            f"{entry.attempts[-1].hash} can never be mined. Let nothing else use the account, and run again"
        )

    def _receipt(self, entry: DeploymentEntry) -> TxReceipt | None:
        return next((found for found in map(partial(receipt_of, self.node), _hashes(entry)) if found is not None), None)

    def _not_mined(self, step: SendingStep) -> Fatal:
        last = self.journal.entries[step.key].attempts[-1]
        base = current_fees(self.node, FeeOptions()).base
        return Fatal(
            f"{step.key}: {last.hash} is not confirmed after {self.options.timeout_seconds:g} s. It offers at most "
            f"{in_gwei(last.max_fee)} gwei; the chain asks {in_gwei(base)}. Run again to go on waiting, or with "
            "--replace to sign it again at the same nonce for a higher fee"
        )


def gas_for(node: Web3, sender: str, call: ContractCall) -> int:
    """Return the gas limit: a fifth above the node's estimate. Raise Fatal when the contract would revert."""
    try:
        needed = node.eth.estimate_gas(_unsigned(sender, call))
    except RpcError as error:
        raise Fatal(f"{call.words}: {refusal(error, sender)}") from error
    if needed > TX_GAS_CAP:
        raise Fatal(f"{call.words}: needs {needed} gas, and a transaction takes {TX_GAS_CAP} at most")
    return min(needed * 6 // 5, TX_GAS_CAP)


def _unsigned(sender: str, call: ContractCall) -> TxParams:
    transaction: TxParams = {"from": sender, "data": HexBytes(call.data)}
    return transaction if call.to is None else {**transaction, "to": call.to}


def refusal(error: RpcError, sender: str) -> str:
    match error.meaning:
        case Meaning.REVERTED:
            return f"the contract would refuse it: {explained(error.data) if error.data else error.message}"
        case Meaning.NO_FUNDS:
            return f"{sender} has too few native funds"
        case _:
            return f"the node refuses to try it: {error}"


def hash_of(raw: bytes) -> str:
    return hex_of(keccak256(raw))


def _hashes(entry: DeploymentEntry) -> Iterator[str]:
    return (attempt.hash for attempt in reversed(entry.attempts))


@attrs.define(slots=True)
class _Timer:
    _seconds: float
    _since: float = attrs.field(factory=time.monotonic)
    _sent: float = attrs.field(factory=time.monotonic)

    def ended(self) -> bool:
        return time.monotonic() - self._since > self._seconds

    def rebroadcast_is_due(self) -> bool:
        if time.monotonic() - self._sent < _REBROADCAST_S:
            return False
        self._sent = time.monotonic()
        return True
