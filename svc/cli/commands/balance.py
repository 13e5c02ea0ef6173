"""Command `svc balance`: the wallet's balance, and the part of the balance that open jobs may spend."""

from typing import TYPE_CHECKING, Final

import click

from common.scalars import hex_of, read_hex
from svc.cli.connection import Connection, add_connection_options
from svc.cli.json_form import to_plain_values
from svc.errors import OrderRefused

if TYPE_CHECKING:
    from common.quotes import FeeTerms
    from svc.records import BookRow

_MAX_JOBS_PER_STATE: Final = 1000  # limit for the open jobs that are added up, and for the claimed jobs


@click.command()
@click.option("--owner", metavar="ADDRESS", help="Show this address instead of yours.")
@add_connection_options
async def balance(connection: Connection, owner: str | None) -> None:
    """Show the wallet's balance and what open jobs may spend.

    The balance is read from a node of the chain (--rpc-url, SVC_RPC_URL). The payment of an open job is authorised but
    still in the wallet. The payment of a claimed job is held by the job registry, which pays the provider or refunds
    you.
    """
    async with connection.client(wallet=owner is None) as client:
        from svc.chain import facts  # noqa: PLC0415
        from svc.cli.money import format_amount  # noqa: PLC0415

        node = client.market_verifier.chain
        if node is None:
            message = "the balance is read from the chain: set SVC_RPC_URL or --rpc-url to a node"
            raise OrderRefused(message, param="SVC_RPC_URL")
        address = read_hex(owner or client.address, 20, "owner")
        deployment = await client.chain()
        token = read_hex(deployment.contracts.paytoken, 20, "paytoken")
        terms = await facts.read_fees(
            node.new_snapshot(), read_hex(deployment.contracts.job_registry, 20, "job_registry")
        )
        wallet_balance = await facts.read_balance(node, token, address)
        rows_by_state = [
            await client.jobs.book(owner=hex_of(address), state=state, limit=_MAX_JOBS_PER_STATE)
            for state in ("Open", "Claimed")
        ]
    authorised, collected = (sum(_authorised_amount(row, terms) for row in rows) for rows in rows_by_state)
    free = max(0, wallet_balance - authorised)
    rows = [
        ("wallet", hex_of(address)),
        ("balance", format_amount(wallet_balance, deployment)),
        ("  authorised", f"{format_amount(authorised, deployment)} by {len(rows_by_state[0])} open jobs"),
        ("  free", format_amount(free, deployment)),
        (
            "held for claimed jobs",
            f"{format_amount(collected, deployment)} by the job registry, for {len(rows_by_state[1])} jobs",
        ),
    ]
    amounts = {"balance": wallet_balance, "authorised": authorised, "free": free, "held": collected}
    members = {"wallet": hex_of(address), "token": hex_of(token), "decimals": deployment.decimals}
    connection.output.show_facts(rows, to_plain_values(members | {name: str(value) for name, value in amounts.items()}))


def _authorised_amount(row: "BookRow", terms: "FeeTerms") -> int:
    """Return the amount authorised for a job, at the current charges."""
    from common import quotes  # noqa: PLC0415

    return quotes.amount(row.rate_in, row.rate_out, row.units_in, row.units_out, terms)
