"""`svcd register`: simulate, price and send the registration, then show the remaining steps of the market's admin."""

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from common import abi
from common.artifacts import load_artifact
from common.contract_events import call_data, returned_values
from common.daemon.process import Fatal
from common.daemon.retries import retry
from common.inclusion.node_values import read_quantity
from common.refusal import Refused
from common.scalars import hex_of
from common.transactions import Transaction
from svc.wire.connections import open_client
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig
from svcd.coordinator.chain import ChainReader, Registration
from svcd.coordinator.client import MarketReader, open_transport, read_deployment
from svcd.operator.identity import publish_identity

PrintLine = Callable[[str], None]

_REGISTER_CALL: Final = call_data(load_artifact("ProviderRegistry"), "register")
_RECEIPT_TIMEOUT_S: Final = 120.0
_RETRY_INTERVAL_S: Final = 1.0
_INDEX_TIMEOUT_S: Final = 10.0
_ADMIN_POLL_INTERVAL_S: Final = 5.0
_GAS_MARGIN_RATIO: Final = (6, 5)  # applied to the gas estimate, because the state may change before the block
_FULL_REPUTATION: Final = 1000


@attrs.frozen(slots=True)
class RegisterOptions:
    """Options of `svcd register`. `confirm` asks the operator to accept the cost.

    If `wait_seconds` is None, do not wait for the market's admin.
    """

    rpc_url: str | None
    dry_run: bool
    confirm: Callable[[], bool]
    wait_seconds: float | None = None


@attrs.frozen(slots=True)
class TransactionCost:
    nonce: int
    gas_limit: int
    tip_per_gas: int
    fee_cap_per_gas: int
    balance_wei: int

    @property
    def max_cost(self) -> int:
        return self.gas_limit * self.fee_cap_per_gas


async def register(config: DaemonConfig, options: RegisterOptions, print_line: PrintLine) -> bool:
    """Register the wallet. Return True if the admin has completed every step. Raise `Fatal` for a failure."""
    url = options.rpc_url or config.rpc_url
    if url is None:
        raise Fatal("no node given: set --rpc-url, or rpc_url under [coordinator], to a node of the market's chain")
    async with open_client(base_url=config.coordinator_url, timeout=30) as http:
        transport = open_transport(http)
        try:
            book = config.addresses or await read_deployment(transport)
            chain = ChainReader(http, url, book, provider_id=0)
            await _check_market(chain)
            registered = await chain.read_registration(config.wallet.address)
            if registered is None:
                registered = await _send_registration(chain, config, options, print_line)
                if registered is None:
                    return False
            else:
                print_line(f"{hex_of(config.wallet.address)} is provider {registered.provider_id} already")
            await _publish_box_key(config, registered, print_line)
            return await _wait_for_admission(
                chain,
                market=MarketReader(transport),
                config=config,
                provider_id=registered.provider_id,
                options=options,
                print_line=print_line,
            )
        except (Unavailable, Refused) as wrong:
            raise Fatal(str(wrong)) from None


async def _check_market(chain: ChainReader) -> None:
    seen = await chain.chain_id()
    if seen != chain.address_book.chain_id:
        raise Fatal(f"--rpc-url is a node of chain {seen}, but the market is on chain {chain.address_book.chain_id}")
    wrong = await chain.find_wrong_contracts()
    if wrong:
        raise Fatal(f"{'; '.join(wrong)}: get the market's address book from its operator (addresses_file)")


async def _send_registration(
    chain: ChainReader, config: DaemonConfig, options: RegisterOptions, print_line: PrintLine
) -> Registration | None:
    """Send the registration, and return the provider. Return None if the operator did not confirm the cost."""
    wallet, registry = config.wallet, chain.address_book.provider_registry
    cost = await _estimate_cost(chain, wallet.address)
    print_line(
        f"register() of {hex_of(registry)} on chain {chain.address_book.chain_id}, sent by {hex_of(wallet.address)}"
    )
    print_line(
        f"gas {cost.gas_limit}, at most {_format_coins(cost.max_cost)} of the native coin;"
        f" the wallet has {_format_coins(cost.balance_wei)}"
    )
    if cost.balance_wei < cost.max_cost:
        raise Fatal(
            f"send {_format_coins(cost.max_cost - cost.balance_wei)} or more of the native coin"
            f" to {hex_of(wallet.address)}"
        )
    if options.dry_run or not options.confirm():
        print_line("the registration was simulated, but not sent (send it with --yes)")
        return None
    transaction = Transaction(
        *(
            chain.address_book.chain_id,
            cost.nonce,
            cost.tip_per_gas,
            cost.fee_cap_per_gas,
            cost.gas_limit,
            registry,
            0,
            _REGISTER_CALL,
        )
    )
    signed = transaction.sign(wallet)
    print_line(f"sent {hex_of(signed.hash)}")
    try:
        await chain.call_node("eth_sendRawTransaction", hex_of(signed.raw))
    except Unavailable as refused:
        # A node may accept the transaction and still answer with an error, so wait for the receipt.
        print_line(f"{refused}; waiting for the receipt, because the node may have accepted the transaction")
    await _wait_until_mined(chain, hex_of(signed.hash))
    registered = await chain.read_registration(wallet.address)
    if registered is None:
        raise Fatal(
            f"{hex_of(signed.hash)} is mined, but the registry does not know the wallet: ask the market's admin"
        )
    print_line(f"{hex_of(wallet.address)} is provider {registered.provider_id}")
    return registered


async def _estimate_cost(chain: ChainReader, address: bytes) -> TransactionCost:
    """Estimate the cost by simulating the call. Raise `Unavailable` if the registry would reject the call."""
    call = {"from": hex_of(address), "to": hex_of(chain.address_book.provider_registry), "data": hex_of(_REGISTER_CALL)}
    block = await chain.call_node("eth_getBlockByNumber", "latest", False)
    base = read_quantity(block if isinstance(block, dict) else {}, "baseFeePerGas")
    tip = await _read_node_number(chain, "eth_maxPriorityFeePerGas")
    mined, pending = [
        await _read_node_number(chain, "eth_getTransactionCount", hex_of(address), at) for at in ("latest", "pending")
    ]
    if pending > mined:
        raise Fatal(
            f"a transaction of {hex_of(address)} is not mined yet: wait until it is mined, then run this command again"
        )
    gas = await _read_node_number(chain, "eth_estimateGas", call) * _GAS_MARGIN_RATIO[0] // _GAS_MARGIN_RATIO[1]
    balance = await _read_node_number(chain, "eth_getBalance", hex_of(address), "latest")
    return TransactionCost(mined, gas, tip, 2 * base + tip, balance)


async def _read_node_number(chain: ChainReader, method: str, *params: object) -> int:
    return read_quantity({method: await chain.call_node(method, *params)}, method)


async def _wait_until_mined(chain: ChainReader, tx_hash: str) -> None:
    with trio.move_on_after(_RECEIPT_TIMEOUT_S):
        while True:
            try:
                receipt = await chain.call_node("eth_getTransactionReceipt", tx_hash)
            except Unavailable:
                receipt = None
            if isinstance(receipt, dict):
                if read_quantity(receipt, "status") != 1:
                    raise Fatal(f"{tx_hash} was mined and reverted: run this command again to see the reason")
                return
            await trio.sleep(_RETRY_INTERVAL_S)
    raise Fatal(
        f"{tx_hash} is not mined after {_RECEIPT_TIMEOUT_S:g} s: wait until it is mined, then run this command again"
    )


def _format_coins(wei: int) -> str:
    """Return the amount in coins of 18 decimals, rounded up to the millionth."""
    whole, rest = divmod(-(-wei // 10**12), 10**6)
    return f"{whole}.{rest:06d}"


async def _publish_box_key(config: DaemonConfig, registered: Registration, print_line: PrintLine) -> None:
    """Publish the box key through the coordinator, which pays the gas. If this fails, show the command for a retry."""
    if config.box is None or registered.box_key == config.box.public.raw:
        return
    until = trio.current_time() + _INDEX_TIMEOUT_S
    try:
        print_line(
            await retry(
                partial(publish_identity, config), on=Fatal, max_wait_s=_RETRY_INTERVAL_S, deadline=lambda: until
            )
        )
    except Fatal as failed:
        print_line(f"the box key is not published: {failed}; publish it with `svcd identity`")


@attrs.frozen(slots=True)
class AdminStep:
    """Step that the market's admin must take, with the command for it."""

    is_done: bool
    description: str
    command: str


async def _wait_for_admission(
    chain: ChainReader,
    *,
    market: MarketReader,
    config: DaemonConfig,
    provider_id: int,
    options: RegisterOptions,
    print_line: PrintLine,
) -> bool:
    reported: frozenset[str] = frozenset()
    until = trio.current_time() + (options.wait_seconds or 0)
    while True:
        steps = await read_admission_steps(chain, market, config, provider_id)
        missing = [step for step in steps if not step.is_done]
        for step in steps:
            if step.is_done and step.description not in reported:
                print_line(f"done     {step.description}")
        reported |= {step.description for step in steps if step.is_done}
        if not missing:
            print_line("the market's admin has completed every step: run `svcd check`, then `svcd run`")
            return True
        if "asked" not in reported:
            print_line("missing  steps of the market's admin (`svcd check` shows them, `svcd register --wait` waits):")
            for step in missing:
                print_line(f"         {step.description}: {step.command}")
            reported |= {"asked"}
        if options.wait_seconds is None:
            return False
        if trio.current_time() >= until:
            raise Fatal(f"the admin has not finished in {options.wait_seconds:g} s; run this command again later")
        await trio.sleep(_ADMIN_POLL_INTERVAL_S)


async def read_admission_steps(
    chain: ChainReader, market: MarketReader, config: DaemonConfig, provider_id: int
) -> list[AdminStep]:
    """Return the admin's steps for a provider. `is_done` is read from the chain."""
    providers = load_artifact("ProviderRegistry")
    asked = call_data(providers, "provider", abi.uint(provider_id))
    now = returned_values(providers, "provider", await chain.call_view(chain.address_book.provider_registry, asked))
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
    known = await market.read_model_ids()
    for name in config.slots:
        if name not in known:
            steps.append(
                AdminStep(False, f"setModel for {name}, which the catalogue lacks", "the model must be set first")
            )
            continue
        asked = call_data(providers, "modelAllowed", abi.uint(provider_id), abi.uint(known[name]))
        allowed = abi.boolean_at(await chain.call_view(chain.address_book.provider_registry, asked), 0)
        command = f"{admin} allow-model {provider_id} {known[name]} yes"
        steps.append(AdminStep(allowed, f"setModelAllowed for {name}, or setAllowAllModels", command))
    return steps
