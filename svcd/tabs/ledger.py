"""Ledger of one tab, without I/O: the requests, answers, vouchers and charge.

    request ─► waiting ─► running ─► unacknowledged ─► acknowledged
                  └───────────┴────► failed (not charged)

A request is admitted only if its voucher covers the highest possible charge of all open requests. A request id runs at
most once.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final, Literal, NoReturn, TypeAlias

import attrs

from common.canonical_json import canonical
from common.domains import Domains
from common.pricing.units import Units
from common.refusal import Refused
from common.strict_json import max_value_count
from common.tab.messages import MAX_OPEN_REQUESTS, SignedVoucher, TabAck, TabRequest
from common.tab.terms import Exchange, TabTotals, first_chain_hash
from common.tab.transcript import MAX_EXCHANGES, exchange_json
from svcd.journal.book_row import Job

MAX_TAB_BYTES: Final = 8 * 2**20  # after this much output no request starts, so that the result needs no upload
MAX_ANSWER_VALUES: Final = 2**16  # JSON values of one answer
# JSON values of all answers. Open requests may add 2**22 values, and the sum stays below `MAX_RESULT_VALUES`.
MAX_TAB_VALUES: Final = 3 * 2**20
MAX_OPEN_BYTES: Final = 64 * 2**20  # memory of the inputs that wait or run
MAX_FAILURES: Final = 500  # requests of one tab that ran and failed, without a charge
# The `welcome` message lists all unacknowledged answers, at most MAX_OPEN_REQUESTS. A tab may have almost
# 2 * MAX_PARALLEL unacknowledged answers.
MAX_PARALLEL: Final = MAX_OPEN_REQUESTS // 2

_MAX_VALUE_BYTES: Final = 100  # upper bound of the memory of one parsed JSON value, without its text
_NO_UNITS: Final = Units(0, 0)

RequestState: TypeAlias = Literal["new", "open", "answered", "failed", "acknowledged"]


@attrs.frozen(slots=True)
class AdmittedRequest:
    """Request that a voucher covers. `units` is the maximum charge."""

    id: int
    input: dict[str, object] = attrs.field(repr=False)
    digest: bytes
    units: Units
    memory_bytes: int  # of the input


@attrs.define(slots=True, eq=False)
class TabLedger:
    """Ledger of one tab. No further request starts while `max_parallel` answers wait for an ack."""

    job: Job
    voucher_key: bytes
    domains: Domains
    max_parallel: int
    voucher: SignedVoucher | None = None
    chain_hash: bytes = attrs.field(init=False)
    totals: TabTotals = attrs.field(factory=TabTotals)
    acknowledged: list[Exchange] = attrs.field(factory=list)
    unacknowledged: dict[int, Exchange] = attrs.field(factory=dict)
    failures: dict[int, str] = attrs.field(factory=dict)
    waiting: deque[AdmittedRequest] = attrs.field(factory=deque)
    running: dict[int, AdmittedRequest] = attrs.field(factory=dict)
    answer_bytes: int = 0
    answer_values: int = 0
    _acknowledged_ids: set[int] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.chain_hash = first_chain_hash(self.job.job_id)

    @property
    def charge(self) -> int:
        """Return the output units to charge for all acknowledged answers."""
        return self._compute_charge(self.totals)

    @property
    def unfinished_count(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def limit_reached(self) -> str | None:
        """Return the reason why the tab accepts no further requests, or None."""
        if self.charge >= self.job.units_out:
            return "cap"
        if self.answer_bytes >= MAX_TAB_BYTES or self.answer_values >= MAX_TAB_VALUES:
            return "full"
        if len(self.acknowledged) + self._open_request_count >= MAX_EXCHANGES:
            return "full"
        return "failures" if len(self.failures) >= MAX_FAILURES else None

    def request_state(self, request_id: int) -> RequestState:
        if request_id in self._acknowledged_ids:
            return "acknowledged"
        if request_id in self.unacknowledged:
            return "answered"
        if request_id in self.failures:
            return "failed"
        is_open = request_id in self.running or any(each.id == request_id for each in self.waiting)
        return "open" if is_open else "new"

    def admit(self, request: TabRequest, units: Units) -> None:
        """Queue a new request. Raise `Refused` (`too_many_requests`, `bad_voucher`, `over_cap` or `over_allowance`)."""
        if self._open_request_count >= MAX_OPEN_REQUESTS:
            raise Refused(f"{MAX_OPEN_REQUESTS} requests are open; wait for answers", code="too_many_requests")
        raw = canonical(request.input)
        memory_bytes = len(raw) + _MAX_VALUE_BYTES * max_value_count(raw)
        in_use = sum(each.memory_bytes for each in (*self.waiting, *self.running.values()))
        if in_use and in_use + memory_bytes > MAX_OPEN_BYTES:
            raise Refused(
                f"the open requests would need more than {MAX_OPEN_BYTES} bytes; wait for answers",
                code="too_many_requests",
            )
        self._check_voucher(request.voucher, self.charge, self.chain_hash)
        needed = self._compute_charge(self._reserved_totals(units))
        if needed > self.job.units_out:
            raise Refused(
                f"the request raises the possible charge to {needed} units, but the tab's cap is {self.job.units_out}",
                code="over_cap",
            )
        if needed > request.voucher.allowance:
            raise Refused(
                f"the voucher must allow {needed} units, but its allowance is {request.voucher.allowance}",
                code="over_allowance",
            )
        self.voucher = request.voucher
        self.waiting.append(AdmittedRequest(request.id, request.input, sha256(raw).digest(), units, memory_bytes))

    def renew_voucher(self, voucher: SignedVoucher) -> None:
        """Store the voucher of a repeated request if the voucher is valid."""
        try:
            self._check_voucher(voucher, self.charge, self.chain_hash)
        except Refused:
            return
        self.voucher = voucher

    def start_next(self) -> AdmittedRequest | None:
        """Start the next request and return it. Return None if no request waits, or too many answers wait for an ack.

        The caller then checks `is_covered`.
        """
        if not self.waiting or max(len(self.unacknowledged), len(self.running)) >= self.max_parallel:
            return None
        admitted = self.waiting.popleft()
        self.running[admitted.id] = admitted
        return admitted

    @property
    def is_covered(self) -> bool:
        """Return True if the newest voucher covers all running requests. An ack may have lowered the allowance."""
        allowance = 0 if self.voucher is None else self.voucher.allowance
        return self._compute_charge(self._reserved_totals(with_waiting=False)) <= allowance

    def record_answer(self, exchange: Exchange) -> None:
        self.running.pop(exchange.id, None)
        self.unacknowledged[exchange.id] = exchange
        raw = canonical(exchange_json(exchange))
        self.answer_bytes += len(raw)
        self.answer_values += max_value_count(raw)

    def record_failure(self, request_id: int, code: str, *, ran: bool) -> None:
        """End a request without a charge. A request that `ran` never runs again."""
        self.running.pop(request_id, None)
        if ran:
            self.failures[request_id] = code

    def take_waiting(self) -> list[AdmittedRequest]:
        """Remove and return the requests that have not started."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def acknowledge(self, ack: TabAck) -> None:
        """Charge all answers of an ack, or raise `Refused` (`bad_ack` or `bad_voucher`) and charge none of them."""
        if len(set(ack.ids)) != len(ack.ids) or not self.unacknowledged.keys() >= set(ack.ids):
            raise Refused("an ack must list distinct ids of unacknowledged answers", code="bad_ack")
        exchanges = [self.unacknowledged[request_id] for request_id in ack.ids]
        chain, totals = self.chain_hash, self.totals
        for exchange in exchanges:
            chain, totals = exchange.chain_hash(chain), totals.plus(exchange.units_in, exchange.units_out)
        self._check_voucher(ack.voucher, self._compute_charge(totals), chain)
        self.voucher, self.chain_hash, self.totals = ack.voucher, chain, totals
        self.acknowledged += exchanges
        self._acknowledged_ids.update(ack.ids)
        for request_id in ack.ids:
            del self.unacknowledged[request_id]

    def restore(self, ends: Mapping[int, Exchange | str], acks: Iterable[TabAck]) -> None:
        """Load the answers, failures and acks of an earlier run.

        Raise `Refused` for an ack that does not match the answers.
        """
        for request_id, end in ends.items():
            if isinstance(end, Exchange):
                self.record_answer(end)
            else:
                self.record_failure(request_id, end, ran=True)
        for ack in acks:
            self.acknowledge(ack)

    @property
    def _open_request_count(self) -> int:
        return self.unfinished_count + len(self.unacknowledged)

    def _reserved_totals(self, units: Units = _NO_UNITS, *, with_waiting: bool = True) -> TabTotals:
        """Return the totals of all answers, of the open requests at their highest charge, and of `units`."""
        totals = self.totals.plus(units.units_in, units.units_out)
        for exchange in self.unacknowledged.values():
            totals = totals.plus(exchange.units_in, exchange.units_out)
        for admitted in (*self.running.values(), *(self.waiting if with_waiting else ())):
            totals = totals.plus(admitted.units.units_in, admitted.units.units_out)
        return totals

    def _compute_charge(self, totals: TabTotals) -> int:
        return totals.charged_units(self.job.rate_in, self.job.rate_out)

    def _check_voucher(self, voucher: SignedVoucher, acknowledged: int, chain: bytes) -> None:
        """Raise `Refused` unless the voucher is newer, matches this ledger and is signed by the tab's key."""
        if voucher.number <= (0 if self.voucher is None else self.voucher.number):
            _raise_bad_voucher("the voucher's number must be larger than every earlier number")
        if voucher.acknowledged != acknowledged or voucher.chain != chain:
            _raise_bad_voucher(f"the voucher must acknowledge {acknowledged} units and the chain of their exchanges")
        if not acknowledged <= voucher.allowance <= self.job.units_out:
            _raise_bad_voucher(f"the voucher's allowance must be between {acknowledged} and {self.job.units_out}")
        if self.domains.tabs.signer(voucher.message(self.job.job_id), voucher.signature) != self.voucher_key:
            _raise_bad_voucher("the voucher is not signed by the tab's key")


def _raise_bad_voucher(message: str) -> NoReturn:
    raise Refused(message, "voucher", "bad_voucher")
