"""Signing requests as wallets accept them: as a digest, or as EIP-712 JSON.

The JSON is built from the message's type string and fields, so that the digest and the JSON always match.
"""

import re
from typing import Any, ClassVar, Final, Protocol, TypeVar

import attrs

from common.domains import SigningDomain
from common.eip712 import Domain, Message
from common.scalars import hex_of

M = TypeVar("M", bound=Message)

_STRUCT_PATTERN: Final = re.compile(r"(?P<name>\w+)\((?P<fields>[^)]*)\)", re.ASCII)


class _TypedMessage(Protocol):
    TYPE: ClassVar[str]
    __attrs_attrs__: ClassVar[tuple["attrs.Attribute[Any]", ...]]


@attrs.frozen(slots=True)
class SigningRequest:
    """Request for one signature. `purpose` names the signed message, for prompts and error messages."""

    purpose: str
    digest: bytes
    domain: Domain
    message: Message = attrs.field(repr=False)

    def typed_data(self) -> dict[str, Any]:
        """Return the EIP-712 JSON for `eth_signTypedData_v4`. Numbers are decimal strings, bytes 0x-hex."""
        message: _TypedMessage = self.message  # type: ignore[assignment] # every message class is a _TypedMessage
        matched = _STRUCT_PATTERN.fullmatch(message.TYPE)
        if matched is None:
            raise TypeError(f"{message.TYPE} must be a single struct without nested structs")
        fields = [entry.split(" ") for entry in matched["fields"].split(",")]
        values = [getattr(message, attribute.name) for attribute in message.__attrs_attrs__]
        return {
            "types": {
                "EIP712Domain": _domain_types(self.domain),
                matched["name"]: [{"name": name, "type": kind} for kind, name in fields],
            },
            "primaryType": matched["name"],
            "domain": _domain_json(self.domain),
            "message": {name: _json_value(value) for (_, name), value in zip(fields, values, strict=True)},
        }


def build_signing_request(purpose: str, domain: SigningDomain[M], message: M) -> SigningRequest:
    return SigningRequest(purpose, domain.digest(message), domain.domain, message)


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return hex_of(value)
    return str(value)


def _domain_types(domain: Domain) -> list[dict[str, str]]:
    kinds = {"name": "string", "version": "string", "chainId": "uint256", "verifyingContract": "address"}
    return [{"name": name, "type": kinds[name]} for name in _domain_json(domain)]


def _domain_json(domain: Domain) -> dict[str, object]:
    domain_fields: dict[str, object] = {"name": domain.name, "version": domain.version, "chainId": domain.chain_id}
    if domain.verifying_contract is not None:
        domain_fields["verifyingContract"] = hex_of(domain.verifying_contract)
    return domain_fields
