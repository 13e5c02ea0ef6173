"""Checks of the coordinator, part by part."""

import platform
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Final

from svc.cli import tables
from svc.cli.failures import hint_of
from svc.cli.health.findings import Finding
from svc.cli.order_readers import readers_of_open_orders
from svc.client import Client
from svc.core.clock import MOST_SKEW
from svc.errors import ConnectionFailed, EscrowUntrusted, SvcError

_HURRY: Final = 5.0  # seconds of difference that an answer's way and whole seconds explain
_UNREACHABLE: Final = "is the coordinator up, and this its address? Set SVC_BASE_URL or --coordinator"
_NO_COORDINATOR: Final = "something else answers at this address: set SVC_BASE_URL or --coordinator"
_GENERIC: Final = "see the message; svc retries what may be retried"

Check = Callable[[Client], Awaitable[list[Finding]]]


async def versions(_: Client) -> list[Finding]:
    return [Finding.well("versions", f"svc {version('sealed-job-coordinator')} on Python {platform.python_version()}")]


async def coordinator(client: Client) -> list[Finding]:
    """That it answers, and that its index has caught up."""
    url = client.settings.base_url
    readiness = await client.readiness()
    if readiness.ready:
        return [Finding.well("coordinator", f"{url} is ready; blocks behind the chain: {readiness.lag}")]
    behind = "" if readiness.lag is None else f"; blocks behind the chain: {readiness.lag}"
    remedy = "wait: listings and jobs are answered once it has caught up; if it lasts, tell its operator"
    return [
        Finding.doubtful("coordinator", f"{url} is not ready: {readiness.code or readiness.reason}{behind}", remedy)
    ]


async def clock(client: Client) -> list[Finding]:
    await client.readiness()
    skew = client.clock_skew()
    seen = f"the coordinator's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this one"
    if abs(skew) <= _HURRY:
        return [Finding.well("clock", "agrees with the coordinator's")]
    if abs(skew) <= MOST_SKEW:
        return [Finding.doubtful("clock", f"{seen}; svc corrects for it", "set this machine's clock by NTP")]
    return [Finding.wrong("clock", seen, "set this machine's clock by NTP: what it signs would be refused as stale")]


async def deployment(client: Client) -> list[Finding]:
    chain = await client.chain()
    name, fee = chain.token_domain.name, chain.fee_bps / 100
    where = f"chain {chain.chain_id}, job registry {chain.contracts.job_registry}"
    seen = f"{where}, paid in {name} ({chain.decimals} decimals), fee {fee:g} %"
    if client.settings.addresses is not None:
        return [Finding.well("deployment", f"{seen}; the address book vouches for it")]
    remedy = "compare it with the operator's address book, and give that: --addresses or SVC_ADDRESSES_FILE"
    return [Finding.doubtful("deployment", f"{seen}; the coordinator's word, as it was at the first use", remedy)]


async def session(client: Client) -> list[Finding]:
    """That the coordinator takes this wallet's signature in the session domain."""
    granted = await client.session()
    return [Finding.well("session", f"signed in as {client.address} until {tables.moment(granted.expires_at)}")]


async def market(client: Client) -> list[Finding]:
    models = [model for model in await client.models.list(limit=None) if model.svc.enabled]
    asks = await client.market.asks(limit=None)
    asking = len({ask.provider_id for ask in asks})
    seen = f"{len(models)} models take orders; providers that ask a price: {asking}"
    if models and asks:
        return [Finding.well("market", seen)]
    return [Finding.doubtful("market", seen, "nothing to buy at the market's price now; open offers wait for takers")]


async def signing(client: Client) -> list[Finding]:
    """That order and payment are signed as the coordinator reads them: by a quote, which owes nothing."""
    enabled = next((model for model in await client.models.list(limit=None) if model.svc.enabled), None)
    provider = next((each for each in await client.market.providers(limit=None) if each.box_key is not None), None)
    if enabled is None or provider is None:
        return [Finding.unchecked("signing", "there is no model or no provider to make an order for", "see the market")]
    prepared = await client.prepare(enabled.id, {}, window="1h", provider=provider.provider_id, rate_in=1, rate_out=1)
    amount = await client.check_quote(prepared, await client.quote(prepared))
    return [Finding.well("signing", f"an order was signed and quoted ({amount} base units); nothing was posted")]


async def escrow(client: Client) -> list[Finding]:
    try:
        offered = await client.escrow()
    except EscrowUntrusted as error:
        remedy = hint_of(error) or "make no open orders here: whoever holds the key reads them"
        return [Finding.wrong("escrow", error.message, remedy)]
    except SvcError as error:
        if error.code != "escrow_unavailable":
            raise
        seen = "none is hosted: open orders are not possible here"
        return [Finding.doubtful("escrow", seen, "name a provider, or give no rates")]
    key = f"{offered.escrow_public_key[:16]}… is bound to its evidence ({offered.evidence.type})"
    readers = readers_of_open_orders(offered.evidence.type)
    return [
        Finding.well("escrow", f"key {key}, release {offered.evidence.release}; open orders can be opened by {readers}")
    ]


COORDINATOR: Final[Mapping[str, Check]] = {
    "versions": versions,
    "coordinator": coordinator,
    "clock": clock,
    "deployment": deployment,
    "market": market,
    "escrow": escrow,
}
WALLET: Final[Mapping[str, Check]] = {"session": session, "signing": signing}


async def reachable(client: Client) -> Finding | None:
    """None when the coordinator answers; otherwise the one finding that matters."""
    try:
        await client.readiness()
    except ConnectionFailed as error:
        return Finding.wrong("coordinator", error.message, f"{_UNREACHABLE} ({client.settings.base_url})")
    except SvcError as error:
        return Finding.wrong("coordinator", error.message, f"{_NO_COORDINATOR} ({client.settings.base_url})")
    return None


async def examined(client: Client, checks: Mapping[str, Check]) -> list[Finding]:
    """What each check found; one that fails is a finding itself."""
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            found += await check(client)
        except SvcError as error:
            found.append(Finding.wrong(name, error.message, hint_of(error) or _GENERIC))
    return found
