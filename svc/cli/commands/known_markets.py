"""Command `svc market`: the remembered keys and contracts of markets."""

from collections.abc import Callable
from typing import TypeVar

import click
from anyio import to_thread

from common.address_book import AddressBook
from common.api.chain import reported_book
from common.refusal import Refused
from svc.cli.connection import Connection, add_connection_options
from svc.cli.exit_codes import ExitCode
from svc.client import Client
from svc.core.known_market import KnownMarket, deployment_fingerprint, read_key
from svc.errors import OrderRefused, SvcError
from svc.records import Deployment

T = TypeVar("T")


@click.group()
def market() -> None:
    """Show, accept and forget a market's remembered keys.

    svc remembers for each coordinator's address: the chain, contracts, the payment token's signing domain, the key of
    the escrow and the providers' box keys. These facts come from an address book (--addresses, SVC_ADDRESSES_FILE) or
    from the first use, and are kept in ~/.config/svc/known_markets.json (or SVC_KNOWN_MARKETS). A change is rejected,
    with the command that accepts it.

    \b
      svc market show
      svc market accept --escrow 5f3c…
      svc market forget
    """


@market.command()
@click.option("--all", "show_all", is_flag=True, help="Show every known market, without connecting to a coordinator.")
@add_connection_options
async def show(connection: Connection, show_all: bool) -> None:
    """Show the remembered facts of a market, and their changes."""
    output = connection.output
    async with connection.client() as client:
        known = await _run_in_thread(client.market_verifier.known_markets.all)
        if show_all:
            output.show_facts([(url, _describe_market(each)) for url, each in known.items()], _markets_json(known))
            return
        url = client.market_verifier.url
        reported = await _read_deployment(client)
    entry = known.get(url)
    facts: list[tuple[str, str | None]] = [("market", url)]
    if entry is None:
        facts.append(("known", "no: svc remembers a market when you first use it"))
    else:
        facts += list(entry.deployment.labelled_values.items())
        facts += [("escrow's key", f"{key} ({kind})") for key, kind in entry.escrow_keys.items()]
        facts += [(f"key of provider {each}", f"0x{key}") for each, key in sorted(entry.box_keys.items())]
    if reported is not None and (entry is None or reported.labelled_values != entry.deployment.labelled_values):
        facts += [(f"reported now: {fact}", value) for fact, value in reported.labelled_values.items()]
        facts.append(
            ("accept with", f"svc market accept --coordinator {url} --deployment {deployment_fingerprint(reported)}")
        )
    output.show_facts(facts, _markets_json({url: entry} if entry is not None else {}))


@market.command()
@click.option("--deployment", metavar="DIGITS", help="Fingerprint of the new deployment, as the error shows it.")
@click.option("--escrow", metavar="HEX", help="Additional key of the escrow.")
@click.option("--provider", type=click.IntRange(1, 2**32 - 1), help="Provider of --box-key.")
@click.option("--box-key", metavar="HEX", help="New key of the provider.")
@add_connection_options
async def accept(
    connection: Connection, *, deployment: str | None, escrow: str | None, provider: int | None, box_key: str | None
) -> ExitCode:
    """Accept a change that the operator or provider announced.

    Pass the new value that the error showed, so that no later change is accepted. Accepting another deployment forgets
    all keys of the old deployment.
    """
    if (provider is None) != (box_key is None) or not (deployment or escrow or box_key):
        raise click.UsageError("set --deployment, --escrow, or --provider with --box-key")
    async with connection.client() as client:
        book = None if deployment is None else await _require_deployment(client, deployment)

        def change(entry: KnownMarket | None) -> KnownMarket | None:
            if book is not None:
                entry = KnownMarket(book)
            if entry is None:
                raise Refused("this market is not known yet: svc remembers a market when you first use it")
            if escrow is not None:
                entry = entry.with_escrow_key(read_key(escrow, "escrow"), "static-coordinator-v1")
            if provider is not None:
                entry = entry.with_box_key(provider, read_key(box_key, "box_key"))
            return entry

        await _run_in_thread(lambda: client.market_verifier.known_markets.change(client.market_verifier.url, change))
        connection.output.write_note(f"accepted for {client.market_verifier.url}")
    return ExitCode.DONE


@market.command()
@add_connection_options
async def forget(connection: Connection) -> None:
    """Forget the coordinator's market. The next command remembers the market again."""
    async with connection.client() as client:
        await _run_in_thread(
            lambda: client.market_verifier.known_markets.change(client.market_verifier.url, lambda _: None)
        )
        connection.output.write_note(f"{client.market_verifier.url} forgotten")


async def _require_deployment(client: Client, expected: str) -> AddressBook:
    reported = reported_book(await client.reported_deployment())
    fingerprint = deployment_fingerprint(reported)
    if fingerprint != expected.lower():
        message = f"{client.market_verifier.url} reports deployment {fingerprint}, not {expected}; see svc market show"
        raise OrderRefused(message, code="deployment_changed", param="deployment")
    return reported


async def _read_deployment(client: Client) -> AddressBook | None:
    """Return the deployment that the coordinator reports, or None if the report cannot be read."""
    try:
        answer: Deployment = await client.reported_deployment()
        return reported_book(answer)
    except (SvcError, Refused):
        return None


async def _run_in_thread(function: Callable[[], T]) -> T:
    try:
        return await to_thread.run_sync(function)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None
    except OSError as error:
        raise OrderRefused(f"cannot access the known markets: {error}", param="SVC_KNOWN_MARKETS") from None


def _describe_market(known: KnownMarket) -> str:
    book = known.deployment
    keys = f"{len(known.escrow_keys)} keys of its escrow, {len(known.box_keys)} of providers"
    return f"chain {book.chain_id}, job registry 0x{book.job_registry.hex()}; {keys}"


def _markets_json(known: dict[str, KnownMarket]) -> dict[str, object]:
    return {url: each.as_json() for url, each in known.items()}
