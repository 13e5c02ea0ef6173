"""Checks of the chain: contracts, fees, models, providers and the wallet's balance."""

import time
from typing import Final

from common.address_book import AddressBook
from common.api.chain import reported_book
from common.checks import CheckRow, right, unknown, wrong
from common.refusal import Refused
from common.scalars import read_hex
from svc.chain import facts
from svc.chain.deployment import check_deployment
from svc.chain.node import Chain
from svc.cli import tables
from svc.cli.failures import hint_for
from svc.client import Client
from svc.errors import ChainContradicts, NodeFailed, OrderRefused
from svc.records import Deployment
from svc.wire.json_rpc import NodeRefusal

_MAX_BLOCK_AGE_S: Final = 300  # if the latest block is older, a warning is shown
_MAX_CHECKED_PROVIDERS: Final = 100
_NODE_REMEDY: Final = "set a node of the market's chain with SVC_RPC_URL or --rpc-url"
_CONTRADICTION_REMEDY: Final = "sign nothing here: the coordinator contradicts the chain; ask its operator"
_UNVERIFIED_FACTS: Final = "contracts, fees, models, providers' keys and your balance are unverified"


async def check_chain(client: Client, chain: Chain | None, wallet: bytes | None) -> list[CheckRow]:
    """Run the checks of the chain. Raises SvcError if the coordinator does not report its deployment."""
    if chain is None:
        return [unknown("chain", _UNVERIFIED_FACTS, _NODE_REMEDY)]
    deployment = await client.reported_deployment()
    try:
        book = reported_book(deployment)
    except Refused as refusal:
        raise OrderRefused.because(refusal, "the coordinator's deployment") from None
    try:
        findings = [*await _check_chain_id(chain, book)]
        if any(finding.remedy for finding in findings):
            return findings
        findings += await _check_contracts(chain, book, deployment)
        findings += await _check_models(client, chain, book)
        findings += await _check_providers(client, chain, book)
        findings += [] if wallet is None else await _check_wallet(chain, deployment, wallet)
    except NodeFailed as error:
        return [wrong("chain", error.message, hint_for(error) or _NODE_REMEDY)]
    return findings


async def _check_chain_id(chain: Chain, book: AddressBook) -> list[CheckRow]:
    chain_id = await chain.chain_id()
    nodes = "the node is" if len(chain.nodes) == 1 else f"{len(chain.nodes)} nodes agree and are"
    if chain_id != book.chain_id:
        return [
            wrong("chain", f"{nodes} of chain {chain_id}, but the market is on chain {book.chain_id}", _NODE_REMEDY)
        ]
    age = int(time.time()) - await chain.block_time()
    if abs(age) > _MAX_BLOCK_AGE_S:
        when = f"{age} s old" if age > 0 else f"{-age} s ahead of this clock"
        remedy = "check this machine's clock; if it is right, the node has stopped following the chain"
        return [unknown("chain", f"chain {chain_id}, but its latest block is {when}", remedy)]
    return [right("chain", f"{nodes} of chain {chain_id}, the latest block {abs(age)} s old")]


async def _check_contracts(chain: Chain, book: AddressBook, deployment: Deployment) -> list[CheckRow]:
    try:
        await check_deployment(chain, book)
    except ChainContradicts as error:
        return [wrong("domains", error.message, _CONTRADICTION_REMEDY)]
    findings = [right("domains", "code, signing domains and token of the contracts are verified by the chain")]
    fees_on_chain = await facts.read_fees(chain, book.job_registry)
    if fees_on_chain.fee_bps != deployment.fee_bps:
        detail = f"the coordinator reports {deployment.fee_bps} basis points, the chain {fees_on_chain.fee_bps}"
        return [*findings, wrong("fees", detail, _CONTRADICTION_REMEDY)]
    amount = tables.format_amount(fees_on_chain.gas_fee, book.payment_token_decimals, book.token_domain.name)
    return [
        *findings,
        right("fees", f"{fees_on_chain.fee_bps / 100:g} % and {amount} per job, verified by the chain"),
    ]


async def _check_models(client: Client, chain: Chain, book: AddressBook) -> list[CheckRow]:
    """Check that each model's number and name are in the registry's events, and that the model is enabled."""
    first = 0 if client.settings.addresses is None else client.settings.addresses.deploy_block
    mismatched, models = [], [model for model in await client.models.list(limit=None) if model.svc.enabled]
    for model in models:
        try:
            name = await facts.find_model_name(chain, book.job_registry, model.svc.model_id, first)
        except NodeRefusal as refusal:
            remedy = "use a node that keeps all logs, or set an address book (--addresses), which has the first block"
            return [unknown("models", refusal.message, remedy)]
        if name != model.id or not await facts.is_model_enabled(chain, book.job_registry, model.svc.model_id):
            mismatched.append(model.id)
    if mismatched:
        return [
            wrong(
                "models",
                f"the chain has other models under the numbers of {', '.join(mismatched)}",
                _CONTRADICTION_REMEDY,
            )
        ]
    return [right("models", f"the numbers of all {len(models)} models are verified by the chain")]


async def _check_providers(client: Client, chain: Chain, book: AddressBook) -> list[CheckRow]:
    mismatched, providers = [], await client.market.providers(limit=_MAX_CHECKED_PROVIDERS)
    for each in providers:
        on_chain = await facts.read_provider(chain, book.provider_registry, each.provider_id)
        reported_key = bytes(32) if each.box_key is None else read_hex(each.box_key, 32, "box_key")
        if (on_chain.box_key, on_chain.listed) != (reported_key, each.listed):
            mismatched.append(str(each.provider_id))
    if mismatched:
        detail = f"the chain has another key or listing for providers {', '.join(mismatched)}"
        return [
            wrong(
                "providers",
                detail,
                f"{_CONTRADICTION_REMEDY}; check again first, because a provider may just have changed its key",
            )
        ]
    return [right("providers", f"keys and listings of {len(providers)} providers are verified by the chain")]


async def _check_wallet(chain: Chain, deployment: Deployment, wallet: bytes) -> list[CheckRow]:
    name = deployment.token_domain.name
    balance = await facts.read_balance(chain, read_hex(deployment.contracts.paytoken, 20, "paytoken"), wallet)
    amount = tables.format_amount(balance, deployment.decimals, name)
    findings = [
        right("balance", f"the wallet holds {amount}")
        if balance
        else wrong("balance", f"the wallet holds no {name}", f"send some to 0x{wallet.hex()}")
    ]
    if await facts.has_code(chain, wallet):
        remedy = "pay from an account without contract code or delegation"
        findings.append(wrong("payer", "the wallet's account has code, so its payments are rejected", remedy))
    return findings
