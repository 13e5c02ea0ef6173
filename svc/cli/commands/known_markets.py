"""Commands about the markets that this user knows."""

from collections.abc import Callable
from typing import TypeVar

import click
from anyio import to_thread

from common.address_book import AddressBook
from common.api.chain import told_book
from common.refusal import Refused
from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.client import Client
from svc.core.known_market import KnownMarket, fingerprint, read_key
from svc.errors import OrderRefused, SvcError
from svc.records import Deployment

T = TypeVar("T")


@click.group()
def market() -> None:
    """Show, accept and forget what is known of a market: it may not change behind your back.

    A market is known by its coordinator's address: chain, contracts, the payment token's signing domain, the escrow's
    key, providers' box keys. They come from an address book (--addresses, SVC_ADDRESSES_FILE) or are remembered at the
    first use, in ~/.config/svc/known_markets.json (SVC_KNOWN_MARKETS names another file). A change is refused, with the
    command that accepts it.

    \b
      svc market show
      svc market accept --escrow 5f3c…
      svc market forget
    """


@market.command()
@click.option("--all", "every", is_flag=True, help="Every market that is known, without asking any coordinator.")
@connected
async def show(connection: Connection, every: bool) -> None:
    """Show what is known of the coordinator's market, and where it tells something else now."""
    output = connection.output
    async with connection.client() as client:
        known = await _stored(client.vouching.known.all)
        if every:
            output.facts([(url, _summary(each)) for url, each in known.items()], _as_json(known))
            return
        url = client.vouching.url
        told = await _told(client)
    entry = known.get(url)
    facts: list[tuple[str, str | None]] = [("market", url)]
    if entry is None:
        facts.append(("known", "no: it is remembered at its first use"))
    else:
        facts += list(entry.deployment.described.items())
        facts += [("escrow's key", f"{key} ({kind})") for key, kind in entry.escrow_keys.items()]
        facts += [(f"key of provider {each}", f"0x{key}") for each, key in sorted(entry.box_keys.items())]
    if told is not None and (entry is None or told.described != entry.deployment.described):
        facts += [(f"told now: {fact}", value) for fact, value in told.described.items()]
        facts.append(("accepted by", f"svc market accept --coordinator {url} --deployment {fingerprint(told)}"))
    output.facts(facts, _as_json({url: entry} if entry is not None else {}))


@market.command()
@click.option("--deployment", metavar="DIGITS", help="The deployment of this fingerprint, as the refusal names it.")
@click.option("--escrow", metavar="HEX", help="One more key of the escrow.")
@click.option("--provider", type=click.IntRange(1, 2**32 - 1), help="The provider whose key --box-key is.")
@click.option("--box-key", metavar="HEX", help="The provider's new key.")
@connected
async def accept(
    connection: Connection, *, deployment: str | None, escrow: str | None, provider: int | None, box_key: str | None
) -> Exit:
    """Accept a change of a market, once its operator or the provider announced it.

    The value is part of the command, so that what is accepted is what was shown. Another deployment is another market:
    the keys that were known of the old one are forgotten with it.
    """
    if (provider is None) != (box_key is None) or not (deployment or escrow or box_key):
        raise click.UsageError("name what is accepted: --deployment, --escrow, or --provider with --box-key")
    async with connection.client() as client:
        book = None if deployment is None else await _deployment(client, deployment)

        def change(entry: KnownMarket | None) -> KnownMarket | None:
            if book is not None:
                entry = KnownMarket(book)
            if entry is None:
                raise Refused("this market is not known yet: its first use remembers it, nothing is to accept")
            if escrow is not None:
                entry = entry.with_escrow_key(read_key(escrow, "escrow"), "static-coordinator-v1")
            if provider is not None:
                entry = entry.with_box_key(provider, read_key(box_key, "box_key"))
            return entry

        await _stored(lambda: client.vouching.known.change(client.vouching.url, change))
        connection.output.say(f"accepted for {client.vouching.url}")
    return Exit.DONE


@market.command()
@connected
async def forget(connection: Connection) -> None:
    """Forget what is known of the coordinator's market: its next use is a first use again."""
    async with connection.client() as client:
        await _stored(lambda: client.vouching.known.change(client.vouching.url, lambda _: None))
        connection.output.say(f"{client.vouching.url} is forgotten")


async def _deployment(client: Client, digits: str) -> AddressBook:
    told = told_book(await client.told_deployment())
    if fingerprint(told) != digits.lower():
        message = f"{client.vouching.url} tells the deployment {fingerprint(told)}, not {digits}: svc market show"
        raise OrderRefused(message, code="deployment_changed", param="deployment")
    return told


async def _told(client: Client) -> AddressBook | None:
    """What the coordinator says now; None where it says nothing that can be read."""
    try:
        answer: Deployment = await client.told_deployment()
        return told_book(answer)
    except (SvcError, Refused):
        return None


async def _stored(read: Callable[[], T]) -> T:
    try:
        return await to_thread.run_sync(read)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None
    except OSError as error:
        raise OrderRefused(f"the known markets: {error}", param="SVC_KNOWN_MARKETS") from None


def _summary(each: KnownMarket) -> str:
    book = each.deployment
    keys = f"{len(each.escrow_keys)} keys of its escrow, {len(each.box_keys)} of providers"
    return f"chain {book.chain_id}, job registry 0x{book.job_registry.hex()}; {keys}"


def _as_json(known: dict[str, KnownMarket]) -> dict[str, object]:
    return {url: each.as_json() for url, each in known.items()}
