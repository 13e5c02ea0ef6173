"""`svc doctor`: what is wrong, and what to do."""

from functools import partial
from typing import Final

import attrs
import click
import httpx

from svc.cli import tables
from svc.cli.connection import Connection, connected
from svc.cli.doctor.checks import COORDINATOR, WALLET, examined, reachable
from svc.cli.doctor.finding import Finding, any_wrong
from svc.cli.doctor.gateways import gateways
from svc.cli.doctor.ledger import ledger
from svc.cli.exits import Exit
from svc.client import Client

_SECONDS: Final = 10.0
_NO_WALLET: Final = Finding.unchecked(
    "wallet", "there is no key", "svc keygen makes one; SVC_WALLET_KEY_FILE or --key-file names its file"
)


@click.command()
@connected
async def doctor(connection: Connection) -> Exit:
    """Say what is wrong and what to do about it, and who vouches for what is right.

    Looked at is all that a job needs: clock, versions, deployment, session, gateway, escrow key; with a node of the
    chain (--rpc-url, SVC_RPC_URL) what it says of contracts, fees, models, providers' keys and the balance as well.
    Nothing is posted and nothing paid. Ends with 9 when something is wrong.
    """
    async with connection.client() as client, httpx.AsyncClient(timeout=_SECONDS) as http:
        away = await reachable(client)
        found = [away] if away is not None else await _all(client, http)
    connection.output.table(tables.findings(found), [attrs.asdict(each) for each in found])
    return Exit.UNHEALTHY if any_wrong(found) else Exit.DONE


async def _all(client: Client, http: httpx.AsyncClient) -> list[Finding]:
    wallet = client.settings.wallet
    address = None if wallet is None else wallet.address
    return [
        *await examined(client, COORDINATOR),
        *(await examined(client, WALLET) if wallet is not None else [_NO_WALLET]),
        *await gateways(client, http),
        *await examined(client, {"chain": partial(ledger, chain=client.vouching.chain, wallet=address)}),
    ]
