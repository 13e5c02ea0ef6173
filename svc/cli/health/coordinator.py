"""Checks of the coordinator."""

import platform
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Final

from common.checks import CheckRow, fact, right, unknown, wrong
from svc.cli import tables
from svc.cli.failures import hint_for
from svc.cli.order_readers import open_order_readers
from svc.client import Client
from svc.core.clock import MAX_SKEW_S
from svc.errors import ConnectionFailed, EscrowUntrusted, SvcError

_CLOCK_TOLERANCE_S: Final = 5.0  # covers network delay and rounding to seconds
_UNREACHABLE_REMEDY: Final = "check that the coordinator runs at this address; set SVC_BASE_URL or --coordinator"
_WRONG_SERVICE_REMEDY: Final = "another service answers at this address: set SVC_BASE_URL or --coordinator"
_GENERIC_REMEDY: Final = "if the error persists, contact the operator"

Check = Callable[[Client], Awaitable[list[CheckRow]]]


async def check_versions(_: Client) -> list[CheckRow]:
    return [right("versions", f"svc {version('sealed-job-coordinator')} on Python {platform.python_version()}")]


async def check_coordinator(client: Client) -> list[CheckRow]:
    """Check that the coordinator answers and that its index has caught up."""
    url = client.settings.base_url
    readiness = await client.readiness()
    if readiness.ready:
        return [right("coordinator", f"{url} is ready; blocks behind the chain: {readiness.lag}")]
    behind = "" if readiness.lag is None else f"; blocks behind the chain: {readiness.lag}"
    remedy = "wait until the index has caught up; if it takes long, contact the operator"
    return [wrong("coordinator", f"{url} is not ready: {readiness.code or readiness.reason}{behind}", remedy)]


async def check_clock(client: Client) -> list[CheckRow]:
    await client.readiness()
    skew = client.clock_skew()
    detail = f"the coordinator's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this one"
    if abs(skew) <= _CLOCK_TOLERANCE_S:
        return [right("clock", "agrees with the coordinator's clock")]
    if abs(skew) <= MAX_SKEW_S:
        return [fact("clock", f"{detail}; svc corrects for it", "set this machine's clock by NTP")]
    return [wrong("clock", detail, "set this machine's clock by NTP: its signatures would be rejected as stale")]


async def check_deployment(client: Client) -> list[CheckRow]:
    deployment = await client.chain()
    name, fee = deployment.token_domain.name, deployment.fee_bps / 100
    where = f"chain {deployment.chain_id}, job registry {deployment.contracts.job_registry}"
    detail = f"{where}, paid in {name} ({deployment.decimals} decimals), fee {fee:g} %"
    if client.settings.addresses is not None:
        return [right("deployment", f"{detail}; verified by the address book")]
    remedy = "set the operator's address book with --addresses or SVC_ADDRESSES_FILE"
    return [unknown("deployment", f"{detail}; reported by the coordinator at the first use", remedy)]


async def check_session(client: Client) -> list[CheckRow]:
    """Check that the coordinator accepts this wallet's session signature."""
    granted = await client.session()
    return [right("session", f"signed in as {client.address} until {tables.format_time(granted.expires_at)}")]


async def check_market(client: Client) -> list[CheckRow]:
    models = [model for model in await client.models.list(limit=None) if model.svc.enabled]
    asks = await client.market.asks(limit=None)
    asking_providers = len({ask.provider_id for ask in asks})
    detail = f"{len(models)} models accept orders; providers with a price: {asking_providers}"
    if models and asks:
        return [right("market", detail)]
    return [fact("market", detail, "no provider has a price now; an open offer waits until a provider claims it")]


async def check_signing(client: Client) -> list[CheckRow]:
    """Sign a test order and request its quote. A quote costs nothing."""
    enabled = next((model for model in await client.models.list(limit=None) if model.svc.enabled), None)
    provider = next((each for each in await client.market.providers(limit=None) if each.box_key is not None), None)
    if enabled is None or provider is None:
        return [unknown("signing", "no model or no provider to sign a test order for", "see the market check")]
    prepared = await client.prepare(enabled.id, {}, window="1h", provider=provider.provider_id, rate_in=1, rate_out=1)
    amount = await client.check_quote(prepared, await client.quote(prepared))
    return [right("signing", f"an order was signed and quoted ({amount} base units); nothing was posted")]


async def check_escrow(client: Client) -> list[CheckRow]:
    try:
        offered = await client.escrow()
    except EscrowUntrusted as error:
        remedy = hint_for(error) or "make no open orders here: the holder of the key can read them"
        return [wrong("escrow", error.message, remedy)]
    except SvcError as error:
        if error.code != "escrow_unavailable":
            raise
        detail = "no escrow: open orders are not possible here"
        return [fact("escrow", detail, "name a provider, or omit the rates")]
    key = f"{offered.escrow_public_key[:16]}… is bound to its evidence ({offered.evidence.type})"
    readers = open_order_readers(offered.evidence.type)
    return [right("escrow", f"key {key}, release {offered.evidence.release}; open orders are readable by {readers}")]


COORDINATOR_CHECKS: Final[Mapping[str, Check]] = {
    "versions": check_versions,
    "coordinator": check_coordinator,
    "clock": check_clock,
    "deployment": check_deployment,
    "market": check_market,
    "escrow": check_escrow,
}
WALLET_CHECKS: Final[Mapping[str, Check]] = {"session": check_session, "signing": check_signing}


async def check_reachable(client: Client) -> CheckRow | None:
    """Return None if the coordinator answers. Otherwise return a finding with the reason."""
    try:
        await client.readiness()
    except ConnectionFailed as error:
        return wrong("coordinator", error.message, f"{_UNREACHABLE_REMEDY} ({client.settings.base_url})")
    except SvcError as error:
        return wrong("coordinator", error.message, f"{_WRONG_SERVICE_REMEDY} ({client.settings.base_url})")
    return None


async def run_checks(client: Client, checks: Mapping[str, Check]) -> list[CheckRow]:
    """Run the checks. If a check raises an error, the error becomes a finding."""
    findings: list[CheckRow] = []
    for name, check in checks.items():
        try:
            findings += await check(client)
        except SvcError as error:
            findings.append(wrong(name, error.message, hint_for(error) or _GENERIC_REMEDY))
    return findings
