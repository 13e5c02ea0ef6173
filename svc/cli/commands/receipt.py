"""Command `svc receipt`: write and verify proofs of jobs."""

from pathlib import Path
from typing import Final

import anyio
import attrs
import click
import httpx

from common.address_book import AddressBook
from common.receipt import ProvedFact, verify_receipt
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from svc.chain.node import Chain
from svc.cli.connection import Connection, add_connection_options
from svc.cli.destinations import open_output
from svc.errors import OrderRefused, ResultUnreadable
from svc.receipts import check_blocks, check_hashes
from svc.settings import node_urls
from svc.wire.connections import open_client
from svc.wire.json_rpc import Node

_FILE_PATH_TYPE: Final = click.Path(path_type=Path, dir_okay=False)


class _WriteCommandByDefault(click.Group):
    """Group that runs `svc receipt JOB` as `svc receipt write JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["write", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WriteCommandByDefault)
def receipt() -> None:
    """Prove an order, its payment and its delivery to a third party.

    \b
      svc receipt JOB --rpc-url URL > job.receipt.json
      svc receipt verify job.receipt.json --rpc-url URL      checks it with the third party's own node
      svc receipt verify job.receipt.json --block-hash 0x…   checks it with block hashes alone

    A receipt holds the signed order and payment, and Merkle proofs of the chain's events under block hashes. It reveals
    nothing of the sealed content, unless it has the --transcript of a tab. Anyone can verify a receipt without the
    coordinator.
    """


@receipt.command("write")
@click.argument("job_id", metavar="JOB", help="Id of the job.")
@click.option("--out", type=_FILE_PATH_TYPE, help="Write the receipt to this file.")
@click.option("--transcript", is_flag=True, help="Prove what a tab charged. The receipt shows the tab's answers.")
@add_connection_options
async def write(connection: Connection, job_id: str, out: Path | None, *, transcript: bool) -> None:
    """Write the receipt of an ended job (same as `svc receipt JOB`)."""
    async with connection.client(wallet=transcript) as client:
        raw = await client.receipt(job_id, transcript=transcript)
    if out is None:
        connection.output.write_text(raw.decode().rstrip("\n"))
        return
    with open_output(out) as file:
        file.write(raw)
    connection.output.write_note(f"receipt written to {out}")


@receipt.command("verify")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="The receipt.")
@click.option(
    "--block-hash", "hashes", multiple=True, metavar="HEX", help="Hash of a block of the chain; may be repeated."
)
@click.option("--market", type=_FILE_PATH_TYPE, help="Address book of the market; reject receipts of other markets.")
@add_connection_options
async def verify(connection: Connection, file: Path, hashes: tuple[str, ...], market: Path | None) -> None:
    """Verify a receipt, and show what proves each of its facts.

    Needs only the file and the hashes of its blocks, from a node or from --block-hash.
    """
    hashes_given, book = _read_options(hashes, market)
    nodes = () if hashes_given else _node_urls_of(connection)
    if not hashes_given and not nodes:
        raise OrderRefused("set --rpc-url or --block-hash, to check the blocks of the receipt")
    try:
        receipt_data = verify_receipt(await anyio.Path(file).read_bytes())
        if book is not None:
            receipt_data.require_market(book)
    except Refused as refusal:
        raise ResultUnreadable(f"{file}: {refusal.message}", code="receipt_false", param=refusal.param) from None
    if hashes_given:
        check_hashes(hashes_given, receipt_data)
    else:
        async with open_client() as http:
            await check_blocks(Chain([Node(url, http) for url in nodes]), receipt_data)
    source = (
        "given with --block-hash" if hashes_given else f"the node {', '.join(httpx.URL(url).host for url in nodes)}"
    )
    facts = [ProvedFact("job", hex_of(receipt_data.job_id), "hash of owner and commitment"), *receipt_data.facts]
    facts += [ProvedFact(f"block {block.number}", hex_of(block.hash), source) for block in receipt_data.blocks]
    rows = [(fact.name, f"{fact.value}  ({fact.rests_on})") for fact in facts]
    connection.output.show_facts(rows, [attrs.asdict(fact) for fact in facts])


def _node_urls_of(connection: Connection) -> tuple[str, ...]:
    try:
        return node_urls(connection.rpc_url, connection.insecure_http or None)
    except Refused as refusal:
        raise OrderRefused.because(refusal) from None


def _read_options(hashes: tuple[str, ...], market: Path | None) -> tuple[list[bytes], AddressBook | None]:
    try:
        hashes_given = [read_hex(each, 32, "--block-hash") for each in hashes]
        return hashes_given, None if market is None else AddressBook.parse(market.read_bytes())
    except (Refused, OSError) as error:
        raise OrderRefused(f"{market or '--block-hash'}: {error}") from None
