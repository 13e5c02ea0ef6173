"""Write, read and check the transcript of a tab, which is the output of the job's sealed result.

    {"svc_tab": 1, "closed": reason, "exchanges": [{"id", "input", "output", "usage", "units_in", "units_out"}, …],
     "voucher": {…} or null, "voucher_key", "delegated_until", "delegation"}

The transcript has every acknowledged exchange, in the order of the acks. `input` is the digest of the request's input.
The last voucher signs the hash chain over the exchanges and the units to charge. Anyone who has the result can
therefore check that the settle charged exactly what the owner acknowledged.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Self

import attrs

from common.domains import HasTabDomain
from common.json_object import MAX_CODE_LENGTH, ObjectReader
from common.refusal import Refused
from common.scalars import hex_of
from common.tab.messages import SignedVoucher
from common.tab.terms import (
    TAB_MEMBER,
    VERSION,
    Exchange,
    TabDelegation,
    TabTotals,
    delegation_json,
    first_chain_hash,
    read_delegation,
)

MAX_EXCHANGES: Final = 100_000
_READER: Final = ObjectReader("the transcript of a tab", "malformed_transcript")


@attrs.frozen(slots=True)
class TabOrder:
    """Values of the tab's job with which a transcript is checked."""

    job_id: bytes
    owner: bytes
    provider_id: int
    rate_in: int
    rate_out: int
    completion_tok: int


@attrs.frozen(slots=True)
class Transcript:
    """Transcript of a tab. `closing_reason` is the reason for closing the tab."""

    closing_reason: str
    exchanges: tuple[Exchange, ...]
    voucher: SignedVoucher | None
    delegation: TabDelegation

    @classmethod
    def read(cls, output: object) -> Self:
        """Read a result's output. Refuse a malformed transcript as `malformed_transcript`."""
        required = {TAB_MEMBER, "closed", "exchanges", "voucher", "voucher_key", "delegated_until", "delegation"}
        fields = _READER.read_fields(output, None, required)
        _READER.require_version(fields, TAB_MEMBER, VERSION)
        exchanges = _READER.read_list(fields["exchanges"], "exchanges", 0, MAX_EXCHANGES)
        try:
            voucher = None if fields["voucher"] is None else SignedVoucher.read(fields["voucher"])
            delegation = read_delegation(fields)
        except Refused as refusal:
            raise _READER.refusal(refusal.message, refusal.param) from None
        return cls(
            _READER.read_text(fields["closed"], "closed", MAX_CODE_LENGTH),
            tuple(read_exchange(each, f"exchanges[{n}]") for n, each in enumerate(exchanges)),
            voucher,
            delegation,
        )

    def output(self) -> dict[str, object]:
        """Return the transcript as the output of the job's result."""
        return {
            TAB_MEMBER: VERSION,
            "closed": self.closing_reason,
            "exchanges": [exchange_json(exchange) for exchange in self.exchanges],
            "voucher": None if self.voucher is None else self.voucher.as_json(),
        } | delegation_json(self.delegation)

    @property
    def acknowledged_units(self) -> int:
        """Return the `completion_tok` that the last voucher acknowledges."""
        return 0 if self.voucher is None else self.voucher.acknowledged

    def find_fault(self, order: TabOrder, domains: HasTabDomain) -> str | None:
        """Return why the transcript does not prove the job's charge, or None if the charge is proved.

        A reason that starts with `overcharged` means that the settle charged more than the owner acknowledged.
        """
        if not self.delegation.is_signed_by(order.owner, order.provider_id, domains):
            return "the delegation is not signed by the owner for this provider"
        voucher = self.voucher
        if voucher is None:
            if self.exchanges:
                return "the transcript has exchanges but no voucher"
        else:
            signer = domains.tabs.signer(voucher.message(order.job_id), voucher.signature)
            if signer != self.delegation.voucher_key:
                return "the voucher is not signed by the tab's key"
            if hash_exchange_chain(order.job_id, self.exchanges) != voucher.chain:
                return "the voucher signs different exchanges"
            if sum_exchange_units(self.exchanges).charged_units(order.rate_in, order.rate_out) != voucher.acknowledged:
                return "the voucher acknowledges different units than the exchanges have"
        if order.completion_tok > self.acknowledged_units:
            return f"overcharged: {order.completion_tok} units settled, {self.acknowledged_units} acknowledged"
        return None


def hash_exchange_chain(job_id: bytes, exchanges: Iterable[Exchange]) -> bytes:
    chain = first_chain_hash(job_id)
    for exchange in exchanges:
        chain = exchange.chain_hash(chain)
    return chain


def sum_exchange_units(exchanges: Iterable[Exchange]) -> TabTotals:
    totals = TabTotals()
    for exchange in exchanges:
        totals = totals.plus(exchange.units_in, exchange.units_out)
    return totals


def exchange_json(exchange: Exchange) -> dict[str, object]:
    return {
        "id": exchange.id,
        "input": hex_of(exchange.input_digest),
        "output": exchange.output,
        "usage": exchange.usage,
        "units_in": exchange.units_in,
        "units_out": exchange.units_out,
    }


def read_exchange(value: object, param: str = "exchange") -> Exchange:
    """Read the JSON that `exchange_json` writes. Refuse any other form as `malformed_transcript`."""
    fields: Mapping[str, object] = _READER.read_fields(
        value, param, {"id", "input", "output", "usage", "units_in", "units_out"}
    )
    return Exchange(
        _READER.read_count(fields["id"], f"{param}.id"),
        _READER.read_hex(fields["input"], 32, f"{param}.input"),
        fields["output"],
        _READER.read_object(fields["usage"], f"{param}.usage"),
        _READER.read_count(fields["units_in"], f"{param}.units_in"),
        _READER.read_count(fields["units_out"], f"{param}.units_out"),
    )
