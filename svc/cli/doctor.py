"""`svc doctor`: checks of the wallet, the coordinator, the gateways and the chain, each with its remedy."""

import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import Final

import attrs
import click
import httpx

from common.address_book import AddressBook
from common.api.chain import told_book
from common.refusal import Refused
from common.scalars import read_hex
from svc.chain import facts
from svc.chain.facts import check_deployment
from svc.chain.node import Chain, Refusal
from svc.cli import tables
from svc.cli.connection import Connection, connected
from svc.cli.exit_codes import Exit
from svc.cli.failures import hint_of
from svc.cli.inputs import readers_of_open_orders
from svc.cli.output import Table
from svc.client import Client
from svc.core.clock import MOST_SKEW
from svc.errors import ChainContradicts, ConnectionFailed, EscrowUntrusted, NodeFailed, OrderRefused, SvcError
from svc.records import Deployment
from svc.wire.transport import opened

# Finding of one check, and its remedy.


class Health(StrEnum):
    WELL = "ok"
    DOUBTFUL = "warning"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


@attrs.frozen
class Finding:
    """`remedy` is there for whatever is not well."""

    check: str
    health: Health
    seen: str
    remedy: str | None = None

    @classmethod
    def well(cls, check: str, seen: str) -> "Finding":
        return cls(check, Health.WELL, seen)

    @classmethod
    def doubtful(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.DOUBTFUL, seen, remedy)

    @classmethod
    def wrong(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.WRONG, seen, remedy)

    @classmethod
    def unchecked(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.UNCHECKED, seen, remedy)


def any_wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.health is Health.WRONG for finding in findings)


# Checks of the coordinator, part by part.

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


# Check of the gateways: each is asked for the container of the newest job.

_SECONDS: Final = 10.0
_OK: Final = 200


async def gateways(client: Client, http: httpx.AsyncClient) -> list[Finding]:
    urls = client.settings.gateways
    if not urls:
        remedy = "set SVC_PIN_GATEWAY or --gateway to read results"
        return [Finding.doubtful("gateway", "none: results are not read", remedy)]
    try:
        newest = await client.jobs.book(order="newest", limit=1)
    except SvcError:  # the coordinator's own check tells why
        newest = []
    cid = newest[0].task_cid if newest else None
    return [await _asked(http, url, cid) for url in urls]


async def _asked(http: httpx.AsyncClient, url: str, cid: str | None) -> Finding:
    try:
        async with opened(http, "GET", url if cid is None else f"{url}/ipfs/{cid}", timeout=_SECONDS) as answer:
            status = answer.status_code
    except httpx.RequestError as error:
        seen = f"{url} does not answer: {error or type(error).__name__}"
        return Finding.wrong("gateway", seen, "try another with SVC_PIN_GATEWAY or --gateway")
    if cid is None:
        return Finding.unchecked("gateway", f"{url} answers; no job is stored yet to ask it for", "ask again later")
    if status == _OK:
        return Finding.well("gateway", f"{url} serves what is stored")
    seen = f"{url} answers {status} for {cid}, the newest job's container"
    return Finding.wrong("gateway", seen, "it may not see this market's store: try another with SVC_PIN_GATEWAY")


_STALE: Final = 300  # seconds; a chain that makes blocks at all is younger
_MOST_PROVIDERS: Final = 100  # that are looked up
_NODE: Final = "give doctor a node of the right chain: SVC_RPC_URL or --rpc-url"
_LIE: Final = "sign nothing here: the coordinator says what the chain does not; ask its operator"
_UNCHECKED: Final = "contracts, fees, models, providers' keys and your balance are the coordinator's word"


async def ledger(client: Client, chain: Chain | None, wallet: bytes | None) -> list[Finding]:
    """Raises an SvcError where the coordinator does not say what is deployed."""
    if chain is None:
        return [Finding.unchecked("chain", _UNCHECKED, _NODE)]
    told = await client.told_deployment()
    try:
        book = told_book(told)
    except Refused as refusal:
        raise OrderRefused.because(refusal, "the coordinator's deployment") from None
    try:
        found = [*await _same_chain(chain, book)]
        if any(finding.remedy for finding in found):
            return found
        found += await _contracts(chain, book, told)
        found += await _models(client, chain, book)
        found += await _providers(client, chain, book)
        found += [] if wallet is None else await _wallet(chain, told, wallet)
    except NodeFailed as error:
        return [Finding.wrong("chain", error.message, hint_of(error) or _NODE)]
    return found


async def _same_chain(chain: Chain, book: AddressBook) -> list[Finding]:
    seen = await chain.chain_id()
    nodes = "the node is" if len(chain.nodes) == 1 else f"{len(chain.nodes)} nodes agree and are"
    if seen != book.chain_id:
        return [Finding.wrong("chain", f"{nodes} of chain {seen}, the market on {book.chain_id}", _NODE)]
    age = int(time.time()) - await chain.block_time()
    if abs(age) > _STALE:
        when = f"{age} s old" if age > 0 else f"{-age} s ahead of this clock"
        remedy = "compare this machine's clock; if it is right, the node has stopped following its chain"
        return [Finding.doubtful("chain", f"chain {seen}, but its latest block is {when}", remedy)]
    return [Finding.well("chain", f"{nodes} of chain {seen}, the latest block {abs(age)} s old")]


async def _contracts(chain: Chain, book: AddressBook, told: Deployment) -> list[Finding]:
    try:
        await check_deployment(chain, book)
    except ChainContradicts as lie:
        return [Finding.wrong("domains", lie.message, _LIE)]
    found = [Finding.well("domains", "the chain vouches: code, signing domains and token of the contracts are as told")]
    charged = await facts.fees(chain, book.job_registry)
    if charged.fee_bps != told.fee_bps:
        seen = f"the coordinator says {told.fee_bps} basis points, the chain {charged.fee_bps}"
        return [*found, Finding.wrong("fees", seen, _LIE)]
    amount = tables.token(charged.gas_fee, book.payment_token_decimals, book.token_domain.name)
    return [*found, Finding.well("fees", f"the chain vouches: {charged.fee_bps / 100:g} % and {amount} for each job")]


async def _models(client: Client, chain: Chain, book: AddressBook) -> list[Finding]:
    """Each model's number by its name, as the registry's events have them."""
    first = 0 if client.settings.addresses is None else client.settings.addresses.deploy_block
    wrong, models = [], [model for model in await client.models.list(limit=None) if model.svc.enabled]
    for model in models:
        try:
            name = await facts.model_name(chain, book.job_registry, model.svc.model_id, first)
        except Refusal as refusal:
            remedy = "a node that keeps all logs, or an address book (--addresses), which says where they begin"
            return [Finding.unchecked("models", refusal.message, remedy)]
        if name != model.id or not await facts.model_enabled(chain, book.job_registry, model.svc.model_id):
            wrong.append(model.id)
    if wrong:
        return [Finding.wrong("models", f"the chain has other models under the numbers of {', '.join(wrong)}", _LIE)]
    return [Finding.well("models", f"the chain vouches for the numbers of all {len(models)}")]


async def _providers(client: Client, chain: Chain, book: AddressBook) -> list[Finding]:
    wrong, providers = [], await client.market.providers(limit=_MOST_PROVIDERS)
    for each in providers:
        found = await facts.provider(chain, book.provider_registry, each.provider_id)
        told = bytes(32) if each.box_key is None else read_hex(each.box_key, 32, "box_key")
        if (found.box_key, found.listed) != (told, each.listed):
            wrong.append(str(each.provider_id))
    if wrong:
        seen = f"the chain has another key or listing for: {', '.join(wrong)}"
        return [Finding.wrong("providers", seen, f"{_LIE}; look again first, if one changed its key just now")]
    return [Finding.well("providers", f"the chain vouches for keys and listings of {len(providers)} providers")]


async def _wallet(chain: Chain, told: Deployment, wallet: bytes) -> list[Finding]:
    name = told.token_domain.name
    held = await facts.balance(chain, read_hex(told.contracts.paytoken, 20, "paytoken"), wallet)
    amount = tables.token(held, told.decimals, name)
    found = [
        Finding.well("balance", f"the wallet holds {amount}")
        if held
        else Finding.wrong("balance", f"the wallet holds no {name}", f"send some to 0x{wallet.hex()}")
    ]
    if await facts.has_code(chain, wallet):
        remedy = "pay from an account without contract code or delegation"
        found.append(Finding.wrong("payer", "the wallet's account has code: its payments are refused", remedy))
    return found


# The command `svc doctor`.

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
    async with connection.client(wallet=None) as client, httpx.AsyncClient(timeout=_SECONDS) as http:
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
