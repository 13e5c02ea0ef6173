"""Command `svc balance`: the wallet's money, and what its open jobs may still spend of it."""

from typing import TYPE_CHECKING, Final

import click

from common.scalars import hex_of, read_hex
from svc.cli.connection import Connection, connected
from svc.cli.json_form import wire_form
from svc.errors import OrderRefused

if TYPE_CHECKING:
    from common.quotes import FeeTerms
    from svc.records import BookRow

_MOST: Final = 1000  # jobs under way that are added up


@click.command()
@click.option("--owner", metavar="ADDRESS", help="Of this account instead of your own.")
@connected
async def balance(connection: Connection, owner: str | None) -> None:
    """Show what the wallet holds of the payment token, and what its jobs may take of it.

    The balance is read from a node of the chain (--rpc-url, SVC_RPC_URL), for no coordinator is asked what an account
    holds. An open job's payment is authorised and still in the wallet; a claimed job's is in the job registry, which
    pays the provider from it or returns it.
    """
    async with connection.client(wallet=owner is None) as client:
        from svc.chain import facts  # noqa: PLC0415
        from svc.cli.money import told  # noqa: PLC0415

        node = client.vouching.chain
        if node is None:
            message = "a balance is read from the chain: set SVC_RPC_URL to a node of it, or name one with --rpc-url"
            raise OrderRefused(message, param="SVC_RPC_URL")
        whose = read_hex(owner or client.address, 20, "owner")
        chain = await client.chain()
        token = read_hex(chain.contracts.paytoken, 20, "paytoken")
        terms = await facts.fees(node.later(), read_hex(chain.contracts.job_registry, 20, "job_registry"))
        held = await facts.balance(node, token, whose)
        under_way = [
            await client.jobs.book(owner=hex_of(whose), state=state, limit=_MOST) for state in ("Open", "Claimed")
        ]
    authorised, collected = (sum(_amount(row, terms) for row in rows) for rows in under_way)
    free = max(0, held - authorised)
    said = [
        ("wallet", hex_of(whose)),
        ("balance", told(held, chain)),
        ("  of it authorised", f"{told(authorised, chain)} by {len(under_way[0])} open jobs"),
        ("  of it free", told(free, chain)),
        ("held for claimed jobs", f"{told(collected, chain)} by the job registry, for {len(under_way[1])} jobs"),
    ]
    plain = {"balance": held, "authorised": authorised, "free": free, "held": collected}
    output = {"wallet": hex_of(whose), "token": hex_of(token), "decimals": chain.decimals}
    connection.output.facts(said, wire_form(output | {name: str(value) for name, value in plain.items()}))


def _amount(row: "BookRow", terms: "FeeTerms") -> int:
    """What was authorised for a job, by the present charges."""
    from common import quotes  # noqa: PLC0415

    return quotes.amount(row.rate_in, row.rate_out, row.units_in, row.units_out, terms)
