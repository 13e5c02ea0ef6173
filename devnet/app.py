"""Start all services of the devnet in order, and stop them in reverse order."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from anyio import create_task_group

from devnet import accounts, manifest, ports, settings, state_dir
from devnet.accounts import DevWallet, DevWallets
from devnet.anvil import Anvil, running_anvil
from devnet.contracts import connect_to_chain, deploy_all
from devnet.coordinator import running_coordinator
from devnet.market import DevnetMarket, open_market
from devnet.model import running_model
from devnet.pins import running_pin_store
from devnet.postgres import running_postgres
from devnet.provider import running_provider
from devnet.settings import DevnetSettings
from devnet.world import Devnet, World

PrintLine = Callable[[str], None]


@asynccontextmanager
async def run_devnet(options: DevnetSettings, print_line: PrintLine) -> AsyncIterator[Devnet]:
    """Run the devnet and write devnet.json. Raise `DevnetError` if a service ends unexpectedly."""
    with (
        state_dir.claim_state_dir(options.state_dir) as state,
        ports.reserve_ports(options.wanted_ports) as port_by_flag,
    ):
        if state.removed_leftovers:
            print_line(f"removed the files of a killed run from {state.path}")
        for port in options.wanted_ports:
            if port.chosen_port is None and port_by_flag[port.flag] != port.default_port:
                print_line(
                    f"port {port.default_port} is in use: "
                    f"the {port.service} listens on {port_by_flag[port.flag]} instead"
                )
        chain_id = settings.random_chain_id() if options.chain_id is None else options.chain_id
        print_line("starting the chain, the pin store and the database (1 of 4)")
        async with (
            running_anvil(port_by_flag[settings.RPC_FLAG], state.anvil, state.logs, chain_id=chain_id) as anvil,
            running_pin_store(
                port_by_flag[settings.PIN_STORE_FLAG], port_by_flag[settings.GATEWAY_FLAG], state.pins, state.logs
            ) as pins,
            running_postgres(port_by_flag[settings.DATABASE_FLAG], state.postgres, state.logs) as postgres,
            create_task_group() as watches,
            AsyncExitStack() as stack,
        ):
            for child in (anvil.child, *pins.children, postgres.child):
                watches.start_soon(child.raise_when_ended)
            print_line("deploying the contracts and opening the market (2 of 4)")
            wallets = accounts.derive_wallets()
            market = await deploy_market(anvil, wallets, announcing=(wallets.demo_provider,))
            if options.block_time is not None:
                await anvil.mine_every(options.block_time)
            print_line("starting the coordinator and waiting for its index (3 of 4)")
            async with running_coordinator(
                port=port_by_flag[settings.API_FLAG],
                metrics_port=port_by_flag[settings.METRICS_FLAG],
                rpc_url=anvil.rpc_url,
                database_url=postgres.url(),
                pins=pins,
                address_book=market.address_book,
                relayer_key=wallets.with_role("relayer")[0].private_key,
                operator_key=wallets.operator.private_key,
                logs=state.logs,
            ) as coordinator:
                watches.start_soon(coordinator.child.raise_when_ended)
                model_url = None
                if options.model:
                    print_line("starting the language model")
                    model = await stack.enter_async_context(running_model(state.logs))
                    watches.start_soon(model.child.raise_when_ended)
                    model_url = model.base_url
                print_line("starting the provider and waiting for its asks (4 of 4)")
                async with running_provider(
                    account=wallets.demo_provider,
                    coordinator_url=coordinator.base_url,
                    rpc_url=anvil.rpc_url,
                    gateway=pins.gateway,
                    address_book=market.address_book,
                    metrics_port=port_by_flag[settings.PROVIDER_METRICS_FLAG],
                    directory=state.provider,
                    logs=state.logs,
                    slots=options.slots,
                    ahead=options.ahead,
                    model_url=model_url,
                ) as provider:
                    watches.start_soon(provider.child.raise_when_ended)
                    devnet = Devnet(World(anvil, pins, postgres, wallets, market), coordinator, provider)
                    manifest.write_manifest(state.manifest, devnet)
                    try:
                        yield devnet
                    finally:
                        watches.cancel_scope.cancel()


async def deploy_market(anvil: Anvil, wallets: DevWallets, announcing: Collection[DevWallet] = ()) -> DevnetMarket:
    """Deploy the contracts and open the market. Call this before `mine_every`: until then, every transaction is mined
    at once."""
    async with connect_to_chain(anvil.rpc_url) as chain:
        return await open_market(await deploy_all(chain, wallets), wallets, announcing)
