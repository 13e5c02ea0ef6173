"""Command `svc receipt`: prove a job to a third party, or verify such a proof."""

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
from svc.chain.node import Chain
from svc.cli.connection import Connection, connected
from svc.cli.destinations import written
from svc.errors import OrderRefused, ResultUnreadable
from svc.receipts import check_blocks, check_hashes
from svc.settings import node_urls
from svc.wire.connections import open_client
from svc.wire.json_rpc import Node

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
        async with open_client() as http:
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
