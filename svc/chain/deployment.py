"""Check on the chain that a deployment's contracts exist, reference each other and use the right signing domains."""

from common.address_book import AddressBook
from common.domains import Domains
from common.scalars import hex_of
from svc.chain.facts import (
    has_code,
    read_domain_separator,
    read_payment_token,
    read_provider_registry,
    read_token_decimals,
)
from svc.chain.node import Chain
from svc.errors import ChainContradicts


async def check_deployment(chain: Chain, book: AddressBook) -> None:
    """Compare the address book with the chain. Raises ChainContradicts for the first difference, and NodeFailed.

    Anyone can deploy contracts that pass this check. So the check cannot prove that the addresses are the right ones.
    """
    if (chain_id := await chain.chain_id()) != book.chain_id:
        raise ChainContradicts("chain id", book.chain_id, chain_id)
    domains = Domains.of(book)
    for domain in (domains.jobs, domains.providers, domains.asks, domains.token):
        contract, name = domain.domain.verifying_contract, domain.domain.name
        if contract is None:
            raise AssertionError("the signing domain has no contract")
        if not await has_code(chain, contract):
            raise ChainContradicts(f"contract of {name}", hex_of(contract), "has no code")
        separator = await read_domain_separator(chain, contract)
        if separator != domain.separator:
            raise ChainContradicts(f"signing domain of {name}", hex_of(domain.separator), hex_of(separator))
    token = await read_payment_token(chain, book.job_registry)
    if token != book.paytoken:
        raise ChainContradicts("payment token", hex_of(book.paytoken), hex_of(token))
    registry = await read_provider_registry(chain, book.job_registry)
    if registry != book.provider_registry:
        raise ChainContradicts("provider registry", hex_of(book.provider_registry), hex_of(registry))
    decimals = await read_token_decimals(chain, book.paytoken)
    if decimals != book.payment_token_decimals:
        raise ChainContradicts("token decimals", book.payment_token_decimals, decimals)
