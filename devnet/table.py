"""What a person wants to see of a world that is up: where everything is."""

from devnet.catalogue import MODELS
from devnet.settings import Settings
from devnet.world import Devnet


def overview(up: Devnet, settings: Settings) -> str:
    world = up.world
    market = world.market
    rows = [
        ("coordinator", up.coordinator.base_url),
        ("its metrics", up.coordinator.metrics_url),
        ("provider's metrics", up.provider.metrics_url),
        ("chain", world.anvil.rpc_url),
        ("database", world.postgres.url().replace(world.postgres.password, "***")),
        ("pin store", f"{world.pins.endpoint}/{world.pins.bucket}"),
        ("gateway", f"{world.pins.gateway}/ipfs/<cid>"),
        ("job registry", market.jobs),
        ("provider registry", market.providers),
        ("ask registry", market.asks),
        (f"payment token ({market.token_name})", market.token),
        *((f"model {model.model_id} on {model.endpoint}", model.name) for model in MODELS),
        *((wallet.role, wallet.address) for wallet in world.cast.wallets),
        ("all of it, with keys", str(settings.state_dir.absolute() / "devnet.json")),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
