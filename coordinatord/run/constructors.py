"""Build the settings of the relayer and the budgets from the configuration."""

from typing import Final

from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.fees import fee_ceiling_for_chain
from coordinatord.chain.relayer.settings import MINED_WITHIN_S, RelayerSettings
from coordinatord.run.config import Config
from coordinatord.storage.pins.storage_budgets import StorageBudgets

# The relayer offers a higher fee for a transaction that is not mined within this number of blocks.
_MINED_WITHIN_BLOCKS: Final = 10


def relayer_settings(config: Config) -> RelayerSettings:
    return RelayerSettings(
        queue_timeout_ms=config.relay_queue_timeout_ms,
        block_time_ms=config.block_time_ms,
        reserve_gas=config.relay_reserve_gas,
        cancel_reserve_gas=config.relay_reserve_gas // 3,
        mined_within_s=max(MINED_WITHIN_S, _MINED_WITHIN_BLOCKS * config.block_time_ms / 1000),
        fee_ceiling=fee_ceiling_for_chain(
            config.addresses.chain_id, config.relay_max_fee_gwei, config.relay_max_tip_gwei
        ),
    )


def gas_policy(config: Config) -> GasPolicy:
    return config.limits.gas or GasPolicy.from_daily_gas(config.budget_wallet_gas, config.budget_newcomers_gas)


def storage_budgets(config: Config) -> StorageBudgets:
    return config.limits.storage or StorageBudgets.from_settings(config.storage_bytes, config.storage_newcomers_bytes)
