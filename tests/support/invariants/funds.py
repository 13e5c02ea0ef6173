"""I5 by reads of the chain: every token unit in the registry belongs to a claimed job or to a party's credit.

violations = await fund_violations(rpc, address_book)
assert violations == []
"""

from collections import Counter
from typing import Final

import asyncpg
import attrs

from common import abi
from common.address_book import AddressBook
from common.quotes import FeeTerms, quote
from common.scalars import hex_of
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.rpc.client import Rpc
from tests.support.invariants.jobs import job_events


@attrs.define
class _Ledger:
    """Sums of the registry's events."""

    amounts: dict[bytes, int] = attrs.field(factory=dict)  # every posted job
    held: dict[bytes, int] = attrs.field(factory=dict)  # every job that is claimed and has not ended
    owed: Counter[bytes] = attrs.field(factory=Counter)  # credits by party
    treasury: bytes = b""  # party that collects the credited fees
    wrong: list[str] = attrs.field(factory=list)

    def enter(self, event: contract_events.Event) -> None:
        match event:
            case contract_events.JobPosted():
                terms = FeeTerms(event.fee_bps, event.gas_fee)
                quoted = quote(event.rate_in, event.rate_out, event.units_in, event.units_out, terms)
                self.amounts[event.job_id] = quoted.amount
            case contract_events.TreasurySet():
                self.treasury = event.treasury
            case contract_events.JobClaimed():
                self.held[event.job_id] = self.amounts[event.job_id]
            case contract_events.JobSettled():
                collected, split = self.held.pop(event.job_id), event.cost + event.treasury_share + event.refund
                if split != collected:
                    self.wrong.append(f"I5: job {event.job_id.hex()} collected {collected} and paid {split}")
                self.owed[self.treasury] += event.treasury_share
            case contract_events.JobFailed() | contract_events.JobReclaimed():
                del self.held[event.job_id]
            case contract_events.PayoutCredited():
                self.owed[event.party] += event.amount
            case contract_events.CreditWithdrawn():
                self.owed[event.party] -= event.amount


_CLAIMED: Final = "select rate_in, rate_out, units_in, units_out, fee_bps, gas_fee from jobs where state = 1"


async def balance_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", rpc: Rpc, book: AddressBook
) -> list[str]:
    """Check the registry's balance by the index, without the chain's history. Return each violation as a sentence. The
    index must have reached the head, and no block may be mined during the call."""
    registry = book.job_registry
    balance = await read_uint(rpc, book.paytoken, "balanceOf(address)", registry)
    escrowed = await read_uint(rpc, registry, "escrowed()")
    credited = await read_uint(rpc, registry, "totalCredits()")
    held = 0
    for row in await connection.fetch(_CLAIMED):
        rate_in, rate_out, units_in, units_out, fee_bps, gas_fee = map(int, row)
        held += quote(rate_in, rate_out, units_in, units_out, FeeTerms(fee_bps, gas_fee)).amount
    found = []
    if balance != escrowed + credited:
        found.append(f"I5: the registry holds {balance}, and owes {escrowed} + {credited}")
    if escrowed != held:
        found.append(f"I5: {escrowed} is escrowed, and claimed jobs paid {held}")
    return found


async def fund_violations(rpc: Rpc, book: AddressBook, *, donations: int = 0) -> list[str]:
    """Return each violation as a sentence. `donations`: tokens sent to the registry outside of jobs.

    No block may be mined during the call, because the reads are not atomic.
    """
    registry = book.job_registry
    balance = await read_uint(rpc, book.paytoken, "balanceOf(address)", registry)
    escrowed = await read_uint(rpc, registry, "escrowed()")
    credited = await read_uint(rpc, registry, "totalCredits()")
    ledger = _Ledger()
    for event in await job_events(rpc, book):
        ledger.enter(event)
    found = ledger.wrong
    if balance != escrowed + credited + donations:
        found.append(f"I5: the registry holds {balance}, and owes {escrowed} + {credited} + {donations}")
    if escrowed != sum(ledger.held.values()):
        found.append(f"I5: {escrowed} is escrowed, and claimed jobs paid {sum(ledger.held.values())}")
    if credited != ledger.owed.total():
        found.append(f"I5: credits are {credited} in all, and {ledger.owed.total()} by events")
    for party, amount in ledger.owed.items():
        credit = await read_uint(rpc, registry, "credit(address)", party)
        if credit != amount:
            found.append(f"I5: {hex_of(party)} has a credit of {credit}, expected {amount} by events")
    return found


async def read_uint(rpc: Rpc, contract: bytes, function: str, *addresses: bytes) -> int:
    """Call a view that returns one integer, at the latest block."""
    calldata = abi.call_data(abi.selector(function), *map(abi.address, addresses))
    answer = await rpc.call_as(str, "eth_call", {"to": hex_of(contract), "data": hex_of(calldata)}, "latest")
    return int(answer, 16)
