"""What only the chain knows: that this is the chain, that its contracts sign as we do, and what the wallet holds."""

import time
from typing import Final

from common.domains import Domains
from common.scalars import read_hex
from svc.cli import tables
from svc.cli.doctor.finding import Finding
from svc.cli.doctor.node import Node, NodeTrouble
from svc.client import Client
from svc.core.deployment import Market
from svc.records import Deployment

_STALE: Final = 300  # seconds; a chain that makes blocks at all is younger
_NODE: Final = "give doctor a node of the right chain: SVC_RPC_URL or --rpc-url"


async def ledger(client: Client, node: Node | None, wallet: bytes | None) -> list[Finding]:
    """Raises an SvcError where the coordinator does not say what is deployed."""
    if node is None:
        return [Finding.unchecked("chain", "balance and signing domains are not checked", _NODE)]
    chain = await client.chain()
    try:
        found = [*await _same_chain(node, chain)]
        if any(finding.remedy for finding in found):
            return found
        found += await _domains(node, Market.of(chain).domains)
        found += [] if wallet is None else await _wallet(node, chain, wallet)
    except NodeTrouble as trouble:
        return [Finding.wrong("chain", str(trouble), _NODE)]
    return found


async def _same_chain(node: Node, chain: Deployment) -> list[Finding]:
    seen = await node.chain_id()
    if seen != chain.chain_id:
        return [Finding.wrong("chain", f"the node is of chain {seen}, the market on {chain.chain_id}", _NODE)]
    age = int(time.time()) - await node.head_time()
    if abs(age) > _STALE:
        when = f"{age} s old" if age > 0 else f"{-age} s ahead of this clock"
        remedy = "compare this machine's clock; if it is right, the node has stopped following its chain"
        return [Finding.doubtful("chain", f"chain {seen}, but its latest block is {when}", remedy)]
    return [Finding.well("chain", f"the node is of chain {seen} and its latest block {abs(age)} s old")]


async def _domains(node: Node, domains: Domains) -> list[Finding]:
    """Each contract's own separator against the one that is signed with here."""
    wrong = []
    for domain in (domains.jobs, domains.providers, domains.asks, domains.token):
        contract = domain.domain.verifying_contract
        if contract is not None and await node.domain_separator(contract) != domain.separator:
            wrong.append(domain.domain.name)
    if not wrong:
        return [Finding.well("domains", "the contracts sign in the same domains as svc")]
    remedy = "do not sign here: the coordinator names other contracts than it says; ask its operator"
    return [Finding.wrong("domains", f"other signing domains than the contracts': {', '.join(wrong)}", remedy)]


async def _wallet(node: Node, chain: Deployment, wallet: bytes) -> list[Finding]:
    name = chain.token_domain.name
    held = await node.balance(read_hex(chain.contracts.paytoken, 20, "paytoken"), wallet)
    amount = tables.token(held, chain.decimals, name)
    found = [
        Finding.well("balance", f"the wallet holds {amount}")
        if held
        else Finding.wrong("balance", f"the wallet holds no {name}", f"send some to 0x{wallet.hex()}")
    ]
    if await node.has_code(wallet):
        remedy = "pay from an account without contract code or delegation"
        found.append(Finding.wrong("payer", "the wallet's account has code: its payments are refused", remedy))
    return found
