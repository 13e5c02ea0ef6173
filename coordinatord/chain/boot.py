"""What must be true of the chain before anything is signed or verified for it."""

from common import abi
from common.address_book import AddressBook
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.base.errors import Fatal
from coordinatord.chain.contract_calls import Reverted, View, read_many
from coordinatord.chain.rpc import Rpc, quantity, retryable_of
from coordinatord.chain.rpc_errors import Meaning, RpcError

_SEPARATOR = abi.selector("DOMAIN_SEPARATOR()")


async def check_chain(rpc: Rpc, book: AddressBook, domains: Domains) -> None:
    """Fatal, naming what differs: another chain, or a contract whose signing domain is not the address book's.

    Raises Retryable when the node does not answer, or answers with trouble of its own that may pass; the caller decides
    how long to wait for it.
    """
    try:
        chain_id = quantity(await rpc.call("eth_chainId"))
    except RpcError as error:
        if error.meaning is not Meaning.REFUSED:
            raise retryable_of(error, "eth_chainId") from error
        raise Fatal(f"the RPC endpoint does not tell its chain id: {error}") from error
    if chain_id != book.chain_id:
        raise Fatal(f"chainId: the address book is for chain {book.chain_id}, the RPC endpoint serves {chain_id}")
    expected = {
        "jobRegistry": (book.job_registry, domains.jobs.separator),
        "providerRegistry": (book.provider_registry, domains.providers.separator),
        "askRegistry": (book.ask_registry, domains.asks.separator),
        "paytoken": (book.paytoken, domains.token.separator),
    }
    views = [View(address, abi.call(_SEPARATOR), "config_read") for address, _ in expected.values()]
    for (name, (address, separator)), answer in zip(
        expected.items(), await read_many(rpc, views, "config_read"), strict=True
    ):
        if isinstance(answer, Reverted) or answer[:32] != separator:
            raise Fatal(
                f"{name}: the contract at {hex_of(address)} does not have the signing domain of the address book"
            )
