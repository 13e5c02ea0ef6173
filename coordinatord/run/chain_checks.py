"""Check that each node serves the chain and contracts of the address book, before anything is signed."""

import structlog

from common import abi
from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.domains import Domains
from common.scalars import hex_of
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.client import Rpc, decode_quantity, to_retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.chain.rpc.nodes import Nodes
from coordinatord.chain.rpc.views import Reverted, View, read_many

log = structlog.get_logger(__name__)

_DOMAIN_SEPARATOR_SELECTOR = abi.selector("DOMAIN_SEPARATOR()")


async def check_chain(rpc: Rpc, book: AddressBook, domains: Domains) -> None:
    """Raise Fatal if the chain or the signing domain of a contract differs from the address book's.

    Raise Retryable when the node does not answer or reports a temporary error.
    """
    try:
        chain_id = decode_quantity(await rpc.call("eth_chainId"))
    except RpcError as error:
        if error.kind is not RpcErrorKind.REFUSED:
            raise to_retryable(error, "eth_chainId") from error
        raise Fatal(f"the RPC endpoint does not return its chain id: {error}") from error
    if chain_id != book.chain_id:
        raise Fatal(
            f"chainId: the address book is for chain {book.chain_id}, but the RPC endpoint serves chain {chain_id}"
        )
    expected = {
        "jobRegistry": (book.job_registry, domains.jobs.separator),
        "providerRegistry": (book.provider_registry, domains.providers.separator),
        "askRegistry": (book.ask_registry, domains.asks.separator),
        "paytoken": (book.paytoken, domains.token.separator),
    }
    views = [
        View(address, abi.call_data(_DOMAIN_SEPARATOR_SELECTOR), "config_read") for address, _ in expected.values()
    ]
    for (name, (address, separator)), answer in zip(
        expected.items(), await read_many(rpc, views, "config_read"), strict=True
    ):
        if isinstance(answer, Reverted) or answer[:32] != separator:
            raise Fatal(
                f"{name}: the contract at {hex_of(address)} does not have the signing domain of the address book"
            )


async def check_nodes(nodes: Nodes, book: AddressBook, domains: Domains) -> None:
    """Run `check_chain` on every node. Raise Retryable only if no node answers. If there are several nodes, the message
    of Fatal names the node."""
    failures: list[Retryable] = []
    for node in nodes.all:
        try:
            await check_chain(node.rpc, book, domains)
        except Retryable as error:
            failures.append(error)
            log.warning("node does not answer at the start", node=node.name, reason=error.message)
        except Fatal as error:
            raise error if len(nodes.all) == 1 else Fatal(f"node {node.name}: {error}") from None
    if len(failures) == len(nodes.all):
        raise failures[0]
