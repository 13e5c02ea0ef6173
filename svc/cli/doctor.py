"""Command `svc doctor`: checks of the wallet, the coordinator, the gateways and the chain, each with its remedy."""

from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs
import click
import httpx

from svc.cli.connection import Connection, connected
from svc.cli.drawing import Table
from svc.cli.exit_codes import Exit
from svc.cli.health.chain import ledger
from svc.cli.health.coordinator import COORDINATOR, WALLET, examined, reachable
from svc.cli.health.findings import Finding, any_wrong
from svc.cli.health.gateways import TIMEOUT_S, gateways
from svc.client import Client
from svc.wire.connections import open_client

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
    async with connection.client(wallet=None) as client, open_client(timeout=TIMEOUT_S) as http:
        away = await reachable(client)
        found = [away] if away is not None else await _all(client, http)
    connection.output.table(_table(found), [attrs.asdict(each) for each in found])
    return Exit.UNHEALTHY if any_wrong(found) else Exit.DONE


async def _all(client: Client, http: httpx.AsyncClient) -> list[Finding]:
    signer = client.signer
    address = None if signer is None else signer.address
    return [
        *await examined(client, COORDINATOR),
        *(await examined(client, WALLET) if signer is not None else [_NO_WALLET]),
        *await gateways(client, http),
        *await examined(client, {"chain": partial(ledger, chain=client.vouching.chain, wallet=address)}),
    ]


def _table(found: Iterable[Finding]) -> Table:
    rows = [(each.health.value, each.check, each.seen, each.remedy or "") for each in found]
    return Table(("", "check", "seen", "what to do"), rows)
