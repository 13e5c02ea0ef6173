"""`svcd register`: simulate, price and send the registration, then show the admin's next steps."""

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from common import abi
from common.artifacts import load
from common.contract_events import call_data, returned_values
from common.daemon.process import Fatal
from common.daemon.retries import retry
from common.inclusion.node_values import quantity
from common.refusal import Refused
from common.scalars import hex_of
from common.transactions import Transaction
from svc.wire.connections import open_client
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.chain import ChainReader, Registered
from svcd.coordinator.client import MarketReads, read_deployment, transport_of
from svcd.operator.identity import publish_identity

Say = Callable[[str], None]

_REGISTER: Final = call_data(load("ProviderRegistry"), "register")
_RECEIPT_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 1.0
_INDEX_TIMEOUT_S: Final = 10.0
_ADMIN_POLL_S: Final = 5.0
# Gas above the estimate, because the chain changes until the transaction is mined.
_GAS_MARGIN: Final = (6, 5)
_FULL_REPUTATION: Final = 1000


@attrs.frozen(slots=True)
class RegisterOptions:
    """Options. `confirmed` asks the operator once the cost is known. With `wait_seconds` None there is no wait."""

    rpc_url: str | None
    dry_run: bool
    confirmed: Callable[[], bool]
    wait_seconds: float | None = None


@attrs.frozen(slots=True)
class TransactionCost:
    nonce: int
    gas: int
    tip: int
    fee_cap: int
    balance: int

    @property
    def max_cost(self) -> int:
        return self.gas * self.fee_cap


async def register(config: DaemonConfig, options: RegisterOptions, say: Say) -> bool:
    """Register the wallet. Return True if the admin has completed every step. Raise `Fatal` if registration failed."""
    url = options.rpc_url or config.rpc_url
    if url is None:
        raise Fatal("no node given: set --rpc-url, or rpc_url under [coordinator], to a node of the market's chain")
    async with open_client(base_url=config.coordinator_url, timeout=30) as http:
        transport = transport_of(http)
        try:
            book = config.addresses or await read_deployment(transport)
            chain = ChainReader(http, url, book, provider_id=0)
            await _same_market(chain)
            registered = await chain.registered(config.wallet.address)
            if registered is None:
                registered = await _send(chain, config, options, say)
                if registered is None:
                    return False
            else:
                say(f"{hex_of(config.wallet.address)} is provider {registered.provider_id} already")
            await _published(config, registered, say)
            return await _admitted(
                chain,
                market=MarketReads(transport),
                config=config,
                provider_id=registered.provider_id,
                options=options,
                say=say,
            )
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None


async def _same_market(chain: ChainReader) -> None:
    seen = await chain.chain_id()
    if seen != chain.book.chain_id:
        raise Fatal(f"--rpc-url is a node of chain {seen}, the market is on {chain.book.chain_id}")
    wrong = await chain.wrong_contracts()
    if wrong:
        raise Fatal(f"{'; '.join(wrong)}: get the market's address book from its operator (addresses_file)")


async def _send(chain: ChainReader, config: DaemonConfig, options: RegisterOptions, say: Say) -> Registered | None:
    """Send the registration. Return None if the operator did not confirm it."""
    wallet, registry = config.wallet, chain.book.provider_registry
    cost = await _cost(chain, wallet.address)
    say(f"register() of {hex_of(registry)} on chain {chain.book.chain_id}, sent by {hex_of(wallet.address)}")
    say(f"gas {cost.gas}, at most {_coins(cost.max_cost)} of the native coin; the wallet has {_coins(cost.balance)}")
    if cost.balance < cost.max_cost:
        raise Fatal(
            f"send {_coins(cost.max_cost - cost.balance)} or more of the native coin to {hex_of(wallet.address)}"
        )
    if options.dry_run or not options.confirmed():
        say("not sent: it was tried only (--yes sends it)")
        return None
    transaction = Transaction(
        *(chain.book.chain_id, cost.nonce, cost.tip, cost.fee_cap, cost.gas, registry, 0, _REGISTER)
    )
    signed = transaction.sign(wallet)
    say(f"sent {hex_of(signed.hash)}")
    try:
        await chain.ask("eth_sendRawTransaction", hex_of(signed.raw))
    except Unavailable as refused:
        # A node may accept the transaction and still answer with an error, so wait for the receipt.
        say(f"{refused}; looking for it all the same")
    await _mined(chain, hex_of(signed.hash))
    registered = await chain.registered(wallet.address)
    if registered is None:
        raise Fatal(
            f"{hex_of(signed.hash)} is mined, and the registry does not know the wallet: ask the market's admin"
        )
    say(f"{hex_of(wallet.address)} is provider {registered.provider_id}")
    return registered


async def _cost(chain: ChainReader, address: bytes) -> TransactionCost:
    """Return the cost. The gas estimate also simulates the call, and fails if the registry would refuse it."""
    call = {"from": hex_of(address), "to": hex_of(chain.book.provider_registry), "data": hex_of(_REGISTER)}
    block = await chain.ask("eth_getBlockByNumber", "latest", False)
    base = quantity(block if isinstance(block, dict) else {}, "baseFeePerGas")
    tip = await _number(chain, "eth_maxPriorityFeePerGas")
    mined, pending = [
        await _number(chain, "eth_getTransactionCount", hex_of(address), at) for at in ("latest", "pending")
    ]
    if pending > mined:
        raise Fatal(f"a transaction of {hex_of(address)} is not mined yet: wait for it, then run this again")
    gas = await _number(chain, "eth_estimateGas", call) * _GAS_MARGIN[0] // _GAS_MARGIN[1]
    balance = await _number(chain, "eth_getBalance", hex_of(address), "latest")
    return TransactionCost(mined, gas, tip, 2 * base + tip, balance)


async def _number(chain: ChainReader, method: str, *params: object) -> int:
    return quantity({method: await chain.ask(method, *params)}, method)


async def _mined(chain: ChainReader, tx_hash: str) -> None:
    with trio.move_on_after(_RECEIPT_TIMEOUT_S):
        while True:
            try:
                receipt = await chain.ask("eth_getTransactionReceipt", tx_hash)
            except Unavailable:
                receipt = None
            if isinstance(receipt, dict):
                if quantity(receipt, "status") != 1:
                    raise Fatal(f"{tx_hash} is mined and reverted: run this again to see why")
                return
            await trio.sleep(_POLL_S)
    raise Fatal(f"{tx_hash} is not mined after {_RECEIPT_TIMEOUT_S:g} s: look for it, and run this again once it is")


def _coins(wei: int) -> str:
    """Return the amount in coins of 18 decimals, rounded up to the millionth."""
    whole, rest = divmod(-(-wei // 10**12), 10**6)
    return f"{whole}.{rest:06d}"


async def _published(config: DaemonConfig, registered: Registered, say: Say) -> None:
    """Publish the box key through the coordinator, which pays the gas. A failure can be repeated later."""
    if config.box is None or registered.box_key == config.box.public.raw:
        return
    until = trio.current_time() + _INDEX_TIMEOUT_S
    try:
        say(await retry(partial(publish_identity, config), on=Fatal, max_s=_POLL_S, until=lambda: until))
    except Fatal as failed:
        say(f"the box key is not published: {failed}; `svcd identity` does it")


@attrs.frozen(slots=True)
class AdminStep:
    """Step for the market's admin, with its command."""

    done: bool
    about: str
    command: str


async def _admitted(
    chain: ChainReader,
    *,
    market: MarketReads,
    config: DaemonConfig,
    provider_id: int,
    options: RegisterOptions,
    say: Say,
) -> bool:
    reported: frozenset[str] = frozenset()
    until = trio.current_time() + (options.wait_seconds or 0)
    while True:
        steps = await admission(chain, market, config, provider_id)
        missing = [step for step in steps if not step.done]
        for step in steps:
            if step.done and step.about not in reported:
                say(f"done     {step.about}")
        reported |= {step.about for step in steps if step.done}
        if not missing:
            say("the market's admin has done all of it: `svcd check`, then `svcd run`")
            return True
        if "asked" not in reported:
            say("missing  for the market's admin (`svcd check` sees it, `svcd register --wait` waits for it):")
            for step in missing:
                say(f"         {step.about}: {step.command}")
            reported |= {"asked"}
        if options.wait_seconds is None:
            return False
        if trio.current_time() >= until:
            raise Fatal(f"the admin has not finished in {options.wait_seconds:g} s; run this again later")
        await trio.sleep(_ADMIN_POLL_S)


async def admission(chain: ChainReader, market: MarketReads, config: DaemonConfig, provider_id: int) -> list[AdminStep]:
    """Return the admin's steps for a provider, and which of them the chain shows as done."""
    providers = load("ProviderRegistry")
    asked = call_data(providers, "provider", abi.uint(provider_id))
    now = returned_values(providers, "provider", await chain.view(chain.book.provider_registry, asked))
    slots = sum(config.slots.values())
    ceiling = -(-slots * _FULL_REPUTATION // max(1, now["reputation"]))
    admin = "coordinatord market admin"
    steps = [
        AdminStep(now["listed"], "setListed", f"{admin} list-provider {provider_id}"),
        AdminStep(
            now["ceiling"] >= ceiling,
            f"setCeiling to {ceiling}, for {slots} slots at reputation {now['reputation']}",
            f"{admin} ceiling {provider_id} {ceiling}",
        ),
    ]
    known = await market.models()
    for name in config.slots:
        if name not in known:
            steps.append(
                AdminStep(False, f"setModel for {name}, which the catalogue lacks", "the model must be set first")
            )
            continue
        asked = call_data(providers, "modelAllowed", abi.uint(provider_id), abi.uint(known[name]))
        allowed = abi.boolean_at(await chain.view(chain.book.provider_registry, asked), 0)
        command = f"{admin} allow-model {provider_id} {known[name]} yes"
        steps.append(AdminStep(allowed, f"setModelAllowed for {name}, or setAllowAllModels", command))
    return steps
