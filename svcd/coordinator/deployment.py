"""Which chain and contracts a coordinator serves: what our signatures are bound to."""

import attrs

from common.address_book import AddressBook, TokenDomain
from common.domains import Domains
from common.refusal import Refused
from common.scalars import hex_of, read_hex, read_uint
from svcd.coordinator.requests import Reply


@attrs.frozen(slots=True)
class Deployment:
    book: AddressBook

    @property
    def domains(self) -> Domains:
        return Domains.of(self.book)


def read_deployment(reply: Reply) -> Deployment:
    """From the answer to GET /evm/chain; `Refused` where it is none."""
    fields = reply.fields
    contracts, token = fields.get("contracts"), fields.get("token_domain")
    if reply.status != 200 or not isinstance(contracts, dict) or not isinstance(token, dict):
        raise Refused("the answer does not describe a deployment")
    name, version = token.get("name"), token.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        raise Refused("the deployment's token_domain is malformed")
    return Deployment(
        AddressBook(
            chain_id=read_uint(fields.get("chain_id"), 53, "chain_id"),
            deploy_block=0,  # not told, and of no use to a provider
            job_registry=read_hex(contracts.get("job_registry"), 20, "job_registry"),
            provider_registry=read_hex(contracts.get("provider_registry"), 20, "provider_registry"),
            ask_registry=read_hex(contracts.get("ask_registry"), 20, "ask_registry"),
            paytoken=read_hex(contracts.get("paytoken"), 20, "paytoken"),
            payment_token_decimals=read_uint(fields.get("decimals"), 8, "decimals"),
            token_domain=TokenDomain(name, version),
        )
    )


def differences(pinned: AddressBook, served: AddressBook) -> list[str]:
    """Where a coordinator is not the one that the operator means, in words."""
    found = []
    if pinned.chain_id != served.chain_id:
        found.append(f"chain {served.chain_id} instead of {pinned.chain_id}")
    for name in ("job_registry", "provider_registry", "ask_registry", "paytoken"):
        ours, theirs = getattr(pinned, name), getattr(served, name)
        if ours != theirs:
            found.append(f"{name} {hex_of(theirs)} instead of {hex_of(ours)}")
    if pinned.token_domain != served.token_domain:
        found.append("another token domain")
    return found
