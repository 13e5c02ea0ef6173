"""Command `svc doctor`: check the wallet, the coordinator, the gateways and the chain, with a remedy for each fault."""

from functools import partial
from typing import Final

import click
import httpx

from common.checks import CheckRow, unknown, wrong_names
from svc.cli.connection import Connection, add_connection_options
from svc.cli.exit_codes import ExitCode
from svc.cli.health.chain import check_chain
from svc.cli.health.coordinator import COORDINATOR_CHECKS, WALLET_CHECKS, check_reachable, run_checks
from svc.cli.health.gateways import GATEWAY_TIMEOUT_S, check_gateways
from svc.client import Client
from svc.wire.connections import open_client

_NO_WALLET_ROW: Final = unknown(
    "wallet", "no key", "create one with svc keygen, and set SVC_WALLET_KEY_FILE or --key-file"
)


@click.command()
@add_connection_options
async def doctor(connection: Connection) -> ExitCode:
    """Check everything that a job needs. Shows a remedy for each fault.

    Checks the clock, versions, deployment, session, gateway and escrow key. With a node of the chain (--rpc-url,
    SVC_RPC_URL), also checks contracts, fees, models, providers' keys and the balance. Nothing is posted or paid. Exits
    with status 9 if something is wrong.
    """
    async with connection.client(wallet=None) as client, open_client(timeout=GATEWAY_TIMEOUT_S) as http:
        unreachable = await check_reachable(client)
        rows = [unreachable] if unreachable is not None else await _run_all_checks(client, http)
    connection.output.show_checks(rows)
    return ExitCode.UNHEALTHY if wrong_names(rows) else ExitCode.DONE


async def _run_all_checks(client: Client, http: httpx.AsyncClient) -> list[CheckRow]:
    signer = client.signer
    address = None if signer is None else signer.address
    return [
        *await run_checks(client, COORDINATOR_CHECKS),
        *(await run_checks(client, WALLET_CHECKS) if signer is not None else [_NO_WALLET_ROW]),
        *await check_gateways(client, http),
        *await run_checks(client, {"chain": partial(check_chain, chain=client.market_verifier.chain, wallet=address)}),
    ]
