"""Command `svc doctor`: check the wallet, the coordinator, the gateways and the chain, with a remedy for each fault."""

from functools import partial
from typing import Final

import click
import httpx

from common.checks import CheckRow, unknown, wrong_names
from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.cli.health.chain import check_chain
from svc.cli.health.coordinator import COORDINATOR, WALLET, check_reachable, run_checks
from svc.cli.health.gateways import TIMEOUT_S, check_gateways
from svc.client import Client
from svc.wire.connections import open_client

_NO_WALLET: Final = unknown("wallet", "no key", "create one with svc keygen, and set SVC_WALLET_KEY_FILE or --key-file")


@click.command()
@connected
async def doctor(connection: Connection) -> Exit:
    """Check everything that a job needs. Says how to fix it.

    Checks the clock, versions, deployment, session, gateway and escrow key. With a node of the chain (--rpc-url,
    SVC_RPC_URL) also contracts, fees, models, providers' keys and the balance. Nothing is posted or paid. Ends with 9
    if something is wrong.
    """
    async with connection.client(wallet=None) as client, open_client(timeout=TIMEOUT_S) as http:
        unreachable = await check_reachable(client)
        rows = [unreachable] if unreachable is not None else await _all(client, http)
    connection.output.checks(rows)
    return Exit.UNHEALTHY if wrong_names(rows) else Exit.DONE


async def _all(client: Client, http: httpx.AsyncClient) -> list[CheckRow]:
    signer = client.signer
    address = None if signer is None else signer.address
    return [
        *await run_checks(client, COORDINATOR),
        *(await run_checks(client, WALLET) if signer is not None else [_NO_WALLET]),
        *await check_gateways(client, http),
        *await run_checks(client, {"chain": partial(check_chain, chain=client.vouching.chain, wallet=address)}),
    ]
