"""Checks of the chain: contracts, fees, models, providers and the wallet's balance, compared with the coordinator."""

import time
from typing import Final

from common.address_book import AddressBook
from common.api.chain import told_book
from common.refusal import Refused
from common.scalars import read_hex
from svc.chain import facts
from svc.chain.deployment import check_deployment
from svc.chain.node import Chain
from svc.cli import tables
from svc.cli.failures import hint_of
from svc.cli.health.findings import Finding
from svc.client import Client
from svc.errors import ChainContradicts, NodeFailed, OrderRefused
from svc.records import Deployment
from svc.wire.json_rpc import NodeRefusal

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
        except NodeRefusal as refusal:
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
