"""Format the table of a running devnet's addresses."""

from devnet.accounts import DevWallet
from devnet.catalogue import MODELS
from devnet.market import DevnetMarket
from devnet.settings import DevnetSettings
from devnet.world import Devnet


def format_overview(devnet: Devnet, settings: DevnetSettings) -> str:
    world = devnet.world
    market = world.market
    rows = [
        ("coordinator", devnet.coordinator.base_url),
        ("coordinator's metrics", devnet.coordinator.metrics_url),
        ("provider's metrics", devnet.provider.metrics_url),
        ("chain", world.anvil.rpc_url),
        ("chain id", str(market.chain_id)),
        ("database", world.postgres.url().replace(world.postgres.password, "***")),
        ("pin store", f"{world.pins.endpoint}/{world.pins.bucket}"),
        ("gateway", world.pins.gateway),
        ("language model", "SmolLM2-135M" if settings.model else "none (outputs repeat their inputs)"),
        ("job registry", market.jobs),
        ("provider registry", market.providers),
        ("ask registry", market.asks),
        (f"payment token ({market.token_name})", market.token),
        *((f"model {model.model_id} on {model.endpoint}", model.name) for model in MODELS),
        *((_describe_role(market, wallet), wallet.address) for wallet in world.wallets.wallets),
        ("addresses and keys", str(settings.state_dir.absolute() / "devnet.json")),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def _describe_role(market: DevnetMarket, wallet: DevWallet) -> str:
    """Return the wallet's role. A provider's role includes the provider id."""
    return f"provider {market.provider_ids[wallet.address]}" if wallet.role == "provider" else wallet.role
