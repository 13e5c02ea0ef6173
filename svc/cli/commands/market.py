"""Commands about the market: models, prices, providers; and the key that open orders are sealed to."""

from pathlib import Path
from typing import Final

import anyio
import attrs
import click
import httpx

from common.address_book import AddressBook
from common.receipt import Fact, verified
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from svc.chain.node import Chain, Node
from svc.cli import tables
from svc.cli.connection import Connection, connected
from svc.cli.destinations import written
from svc.cli.inputs import readers_of_open_orders
from svc.cli.output import wire_form
from svc.client import Client
from svc.errors import OrderRefused, ResultUnreadable
from svc.receipts import check_blocks, check_hashes
from svc.settings import node_urls
from svc.vouching import Voucher

_ALL: Final = None  # a listing of the market is short


@click.command()
@click.argument("name", required=False, help="One model, with the parameters that it takes.")
@connected
async def models(connection: Connection, name: str | None) -> None:
    """List the models, or show one with its parameters.

    \b
      svc models
      svc models demo/text-small --json | jq .svc.params_schema
    """
    output = connection.output
    async with connection.client() as client:
        if name is None:
            listed = await client.models.list(limit=_ALL)
            output.table(tables.models(listed), wire_form(listed))
            return
        model = await client.models.get(name)
    facts: list[tuple[str, str | None]] = [
        ("model", model.id),
        ("id", str(model.svc.model_id)),
        ("owned by", model.owned_by),
        ("takes orders", "yes" if model.svc.enabled else "no"),
    ]
    properties = (model.svc.params_schema or {}).get("properties", {})
    facts += [(f"  {parameter}", _described(schema)) for parameter, schema in sorted(properties.items())]
    output.facts(facts, wire_form(model))


@click.command()
@click.option("--model", help="Of this model alone.")
@click.option("--floors", is_flag=True, help="The lowest rates of each model and window instead.")
@connected
async def asks(connection: Connection, model: str | None, floors: bool) -> None:
    """List what providers ask.

    Rates are in base units of the payment token per 10^6 units. An order whose rates are at or above a live provider's
    ask can be claimed by it. The two rates of a floor may be those of two providers.
    """
    async with connection.client() as client:
        names = await names_of(client)
        model_id = None if model is None else (await client.models.get(model)).svc.model_id
        if floors:
            lowest = await client.market.floors(model=model_id, limit=_ALL)
            connection.output.table(tables.floors(lowest, names), wire_form(lowest))
        else:
            asked = await client.market.asks(model=model_id, limit=_ALL)
            connection.output.table(tables.asks(asked, names), wire_form(asked))


@click.command()
@click.argument("provider_id", type=click.IntRange(1, 2**32 - 1), required=False, help="One provider.")
@connected
async def providers(connection: Connection, provider_id: int | None) -> None:
    """List the providers, or show one."""
    async with connection.client() as client:
        names = await names_of(client)
        if provider_id is None:
            listed = await client.market.providers(limit=_ALL)
            connection.output.table(tables.providers(listed, names), wire_form(listed))
        else:
            provider = await client.market.provider(provider_id)
            connection.output.table(tables.providers([provider], names), wire_form(provider))


@click.command()
@connected
async def escrow(connection: Connection) -> None:
    """Show the escrow's key once its evidence was verified.

    Open orders are sealed to it: whoever holds it can read them, and that is whoever runs the coordinator. The evidence
    ties the key to the escrow's kind and proves no more; that it is the right operator's is for you to know, by pinning
    it with --escrow-key; else it is remembered at the first use (svc market show).
    """
    async with connection.client() as client:
        offered = await client.escrow()
    evidence = offered.evidence
    facts = [
        ("key", offered.escrow_public_key),
        ("kind", evidence.type),
        ("bound to the key", "yes"),
        ("debug build", "yes" if evidence.debug else "no"),
        ("release", str(evidence.release)),
        ("issued", tables.moment(offered.issued_at)),
        ("open orders can be opened by", readers_of_open_orders(evidence.type)),
        ("vouched for by", (Voucher.PINNED if connection.escrow_keys else Voucher.KNOWN).value),
    ]
    connection.output.facts(facts, wire_form(offered) | {"verified": True})


async def names_of(client: Client) -> dict[int, str]:
    return {model.svc.model_id: model.id for model in await client.models.list(limit=_ALL)}


def _described(schema: object) -> str:
    """A parameter's schema in a few words; --json has it whole."""
    if schema is False:
        return "not taken"
    if not isinstance(schema, dict):
        return "anything"
    words = [str(schema.get("type", "one of several forms" if "oneOf" in schema else "anything"))]
    if "enum" in schema:
        words.append("one of " + ", ".join(map(str, schema["enum"])))
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None or most is not None:
        words.append(f"{'' if least is None else least}..{'' if most is None else most}")
    return ", ".join(words)


# `svc receipt`: proofs of a job for somebody who was not there.

_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class _WriteByDefault(click.Group):
    """`svc receipt JOB` writes one: a first word that is no command is a job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["write", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WriteByDefault)
def receipt() -> None:
    """Prove to a stranger what was ordered, paid and delivered.

    \b
      svc receipt JOB --rpc-url URL > job.receipt.json
      svc receipt verify job.receipt.json --rpc-url URL      a node of the stranger's own
      svc receipt verify job.receipt.json --block-hash 0x…   or the blocks' hashes, from anywhere

    A receipt holds the signed order and payment, and Merkle proofs of the chain's own words under block hashes, and
    tells nothing of what was sealed. To check it no coordinator is asked.
    """


@receipt.command("write")
@click.argument("job_id", metavar="JOB")
@click.option("--out", type=_FILE, help="Write it to a file instead.")
@connected
async def write(connection: Connection, job_id: str, out: Path | None) -> None:
    """Write the receipt of a job that has ended, as JSON (the same as `svc receipt JOB`)."""
    async with connection.client() as client:
        raw = await client.receipt(job_id)
    if out is None:
        connection.output.text(raw.decode().rstrip("\n"))
        return
    with written(out) as file:
        file.write(raw)
    connection.output.say(f"the receipt is in {out}")


@receipt.command("verify")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--block-hash", "hashes", multiple=True, metavar="HEX", help="A block of the chain; may be repeated.")
@click.option("--market", type=_FILE, help="The market's address book: refuse a receipt of any other.")
@connected
async def verify(connection: Connection, file: Path, hashes: tuple[str, ...], market: Path | None) -> None:
    """Check a receipt, and say on what each of its facts rests.

    Nothing but the file and block hashes is needed: those of a node, or those that are given.
    """
    known, book = _given(hashes, market)
    nodes = () if known else _nodes_of(connection)
    if not known and not nodes:
        raise OrderRefused("--rpc-url or --block-hash must be given: without one nobody vouches for the blocks")
    try:
        proved = verified(await anyio.Path(file).read_bytes())
        if book is not None:
            proved.require_market(book)
    except Refused as refusal:
        raise ResultUnreadable(f"{file}: {refusal.message}", code="receipt_false", param=refusal.param) from None
    if known:
        check_hashes(known, proved)
    else:
        async with httpx.AsyncClient() as http:
            await check_blocks(Chain([Node(url, http) for url in nodes]), proved)
    voucher = "given with --block-hash" if known else f"the node {', '.join(httpx.URL(url).host for url in nodes)}"
    facts = [Fact("job", hex_of(proved.job_id), "owner and commitment, which it is made of"), *proved.facts]
    facts += [Fact(f"block {block.number}", hex_of(block.hash), voucher) for block in proved.blocks]
    said = [(fact.name, f"{fact.value}  ({fact.rests_on})") for fact in facts]
    connection.output.facts(said, [attrs.asdict(fact) for fact in facts])


def _nodes_of(connection: Connection) -> tuple[str, ...]:
    try:
        return node_urls(connection.rpc_url, connection.insecure_http or None)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None


def _given(hashes: tuple[str, ...], market: Path | None) -> tuple[list[bytes], AddressBook | None]:
    try:
        known = [read_hex(each, 32, "--block-hash") for each in hashes]
        return known, None if market is None else AddressBook.parse(market.read_bytes())
    except (Refused, OSError) as wrong:
        raise OrderRefused(f"{market or '--block-hash'}: {wrong}") from None
