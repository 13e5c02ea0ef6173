"""Check a deployment on the chain: its contracts exist, sign in the right domains and belong together."""

from common.address_book import AddressBook
from common.domains import Domains
from common.scalars import hex_of
from svc.chain.facts import domain_separator, has_code, paid_token, provider_registry, token_decimals
from svc.chain.node import Chain
from svc.errors import ChainContradicts


async def check_deployment(chain: Chain, book: AddressBook) -> None:
    """Raises ChainContradicts for the first fact that does not match, and NodeFailed if one cannot be read.

    The check cannot prove that these are the intended contracts, because anyone may deploy such contracts.
    """
    if (chain_id := await chain.chain_id()) != book.chain_id:
        raise ChainContradicts("chain id", book.chain_id, chain_id)
    domains = Domains.of(book)
    for domain in (domains.jobs, domains.providers, domains.asks, domains.token):
        contract, name = domain.domain.verifying_contract, domain.domain.name
        if contract is None:
            raise AssertionError("each of these domains has a contract")
        if not await has_code(chain, contract):
            raise ChainContradicts(f"contract of {name}", hex_of(contract), "has no code")
        separator = await domain_separator(chain, contract)
        if separator != domain.separator:
            raise ChainContradicts(f"signing domain of {name}", hex_of(domain.separator), hex_of(separator))
    token = await paid_token(chain, book.job_registry)
    if token != book.paytoken:
        raise ChainContradicts("payment token", hex_of(book.paytoken), hex_of(token))
    registry = await provider_registry(chain, book.job_registry)
    if registry != book.provider_registry:
        raise ChainContradicts("provider registry", hex_of(book.provider_registry), hex_of(registry))
    decimals = await token_decimals(chain, book.paytoken)
    if decimals != book.payment_token_decimals:
        raise ChainContradicts("token decimals", book.payment_token_decimals, decimals)
