"""Settings of each layer, built from the configuration."""

from typing import Final

from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.fees import ceiling_of
from coordinatord.chain.relayer.settings import MINED_WITHIN_S, RelayerSettings
from coordinatord.run.config import Config
from coordinatord.storage.pins.storage_budgets import StorageBudgets

_BLOCKS_TO_BE_MINED: Final = 10


def relayer_settings(config: Config) -> RelayerSettings:
    return RelayerSettings(
        queue_timeout_ms=config.relay_queue_timeout_ms,
        block_time_ms=config.block_time_ms,
        reserve_gas=config.relay_reserve_gas,
        cancel_reserve_gas=config.relay_reserve_gas // 3,
        mined_within=max(MINED_WITHIN_S, _BLOCKS_TO_BE_MINED * config.block_time_ms / 1000),
        fee_ceiling=ceiling_of(config.addresses.chain_id, config.relay_max_fee_gwei, config.relay_max_tip_gwei),
    )


def gas_policy(config: Config) -> GasPolicy:
    return config.limits.gas or GasPolicy.of(config.budget_wallet_gas, config.budget_newcomers_gas)


def storage_budgets(config: Config) -> StorageBudgets:
    return config.limits.storage or StorageBudgets.of(config.storage_bytes, config.storage_newcomers_bytes)
