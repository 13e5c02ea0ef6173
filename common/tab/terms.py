"""Terms of a tab: a claimed job that carries many requests of one owner to one provider, and settles once.

    input of the envelope    {"svc_tab": 1, "channel_key", "voucher_key", "delegated_until", "delegation"}
    evidence of a provider   {"svc_tab": {"v": 1}, …}

`channel_key` is the owner's static key of the channel (`common.tab.channel`). `voucher_key` is the address of the key
that signs vouchers, and `delegation` is the wallet's signature of the `TabKey` for this key.

The order of a tab is designated and has `units_in` = 1. Its `units_out` limits the charge. An exchange is a text
request with its answer. A settle charges the order's `units_in` in full, so the input of answered requests is charged
as output units instead, at the ratio of the order's two rates (`TabTotals.charged_units`), as in a bundle.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Self

import attrs

from common.box import PublicKey
from common.bundle import convert_to_output_units
from common.canonical_json import canonical
from common.domains import HasTabDomain
from common.json_object import ObjectReader
from common.messages.tabs import TabKey
from common.pricing.units import MAX_UNITS
from common.refusal import Refused
from common.scalars import hex_of

TAB_MEMBER: Final = "svc_tab"
VERSION: Final = 1
ORDER_UNITS_IN: Final = 1
MAX_TABS_PER_OWNER: Final = 2  # open at the same provider
IDLE_TIMEOUT_S: Final = 60.0  # without a running request, the provider settles the tab after this time
EXCHANGE_CHAIN_LABEL: Final = b"svc-tab-chain-v1"

_READER: Final = ObjectReader("a tab", "malformed_tab")


@attrs.frozen(slots=True)
class TabDelegation:
    """Delegation with which a wallet lets a tab's key sign vouchers."""

    voucher_key: bytes
    expires_at: int
    signature: bytes

    def is_signed_by(self, owner: bytes, provider_id: int, domains: HasTabDomain) -> bool:
        message = TabKey(self.voucher_key, provider_id, self.expires_at)
        return domains.tabs.signer(message, self.signature) == owner


@attrs.frozen(slots=True)
class TabTerms:
    """Terms in the payload of a tab's job."""

    channel_key: PublicKey
    delegation: TabDelegation

    @classmethod
    def read(cls, model_input: Mapping[str, object]) -> Self:
        """Read the terms from an envelope's input. Refuse malformed terms as `malformed_tab`."""
        fields = _READER.read_fields(
            dict(model_input), None, {TAB_MEMBER, "channel_key", "voucher_key", "delegated_until", "delegation"}
        )
        _READER.require_version(fields, TAB_MEMBER, VERSION)
        try:
            channel_key = PublicKey(_READER.read_hex(fields["channel_key"], 32, "channel_key"))
        except Refused as refusal:
            raise _READER.refusal(refusal.message, "channel_key") from None
        return cls(channel_key, read_delegation(fields))

    def model_input(self) -> dict[str, object]:
        """Return the envelope's input for these terms."""
        return {TAB_MEMBER: VERSION, "channel_key": hex_of(self.channel_key.raw)} | delegation_json(self.delegation)


def read_delegation(fields: Mapping[str, object]) -> TabDelegation:
    return TabDelegation(
        _READER.read_hex(fields["voucher_key"], 20, "voucher_key"),
        _READER.read_count(fields["delegated_until"], "delegated_until", 2**53 - 1),
        _READER.read_hex(fields["delegation"], 65, "delegation"),
    )


def delegation_json(delegation: TabDelegation) -> dict[str, object]:
    return {
        "voucher_key": hex_of(delegation.voucher_key),
        "delegated_until": delegation.expires_at,
        "delegation": hex_of(delegation.signature),
    }


def is_tab(model_input: Mapping[str, object]) -> bool:
    return TAB_MEMBER in model_input


def announcement() -> dict[str, object]:
    """Return the evidence member with which a provider announces that it accepts tabs."""
    return {TAB_MEMBER: {"v": VERSION}}


def announces_tabs(evidence: object) -> bool:
    member = evidence.get(TAB_MEMBER) if isinstance(evidence, Mapping) else None
    return isinstance(member, Mapping) and member.get("v") == VERSION


@attrs.frozen(slots=True)
class TabTotals:
    """Total units of a tab's exchanges."""

    units_in: int = 0
    units_out: int = 0

    def plus(self, units_in: int, units_out: int) -> "TabTotals":
        return TabTotals(self.units_in + units_in, self.units_out + units_out)

    def charged_units(self, rate_in: int, rate_out: int) -> int:
        """Return the `completion_tok` for these units. Refuse more units than fit in an order."""
        units = convert_to_output_units(self.units_in, self.units_out, rate_in, rate_out)
        if units > MAX_UNITS:
            raise _READER.refusal(
                f"the tab needs {units} units_out; an order can have at most {MAX_UNITS}", "units_out"
            )
        return units


def first_chain_hash(job_id: bytes) -> bytes:
    """Return the start of a tab's hash chain, before the first exchange."""
    return hashlib.sha256(EXCHANGE_CHAIN_LABEL + job_id).digest()


def input_digest(model_input: Mapping[str, object]) -> bytes:
    """Return the digest of a request's input. The transcript contains this digest instead of the input."""
    return hashlib.sha256(canonical(dict(model_input))).digest()


@attrs.frozen(slots=True)
class Exchange:
    """Request with its completed answer. The provider chose `output` and `usage`, and charges the units."""

    id: int
    input_digest: bytes
    output: object
    usage: dict[str, object]
    units_in: int
    units_out: int

    def chain_hash(self, previous: bytes) -> bytes:
        """Return the chain's hash after this exchange. `previous` is the hash before this exchange."""
        return hashlib.sha256(
            previous
            + self.id.to_bytes(4, "big")
            + self.input_digest
            + hashlib.sha256(canonical({"output": self.output, "usage": self.usage})).digest()
            + self.units_in.to_bytes(4, "big")
            + self.units_out.to_bytes(4, "big")
        ).digest()
