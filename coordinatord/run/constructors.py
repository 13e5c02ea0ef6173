"""Settings of each layer, built from the configuration that the environment gives."""

from typing import Final

from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.chain.relayer.fees import ceiling_of
from coordinatord.chain.relayer.settings import MINED_WITHIN_S, RelayerSettings
from coordinatord.run.config import Config
from coordinatord.storage.pins.storage_budgets import NEWCOMERS_ROWS, StorageBudgets

_BLOCKS_TO_BE_MINED: Final = 10


def relayer_settings(config: Config) -> RelayerSettings:
    return RelayerSettings(
        coalesce_max=config.relay_coalesce_max,
        queue_timeout_ms=config.relay_queue_timeout_ms,
        block_time_ms=config.block_time_ms,
        reserve_gas=config.relay_reserve_gas,
        cancel_reserve_gas=config.relay_cancel_reserve_gas,
        max_tx_gas=config.relay_max_tx_gas,
        chains=config.relay_chains == "on",
        mined_within=max(MINED_WITHIN_S, _BLOCKS_TO_BE_MINED * config.block_time_ms / 1000),
        fee_ceiling=ceiling_of(config.addresses.chain_id, config.relay_max_fee_gwei, config.relay_max_tip_gwei),
    )


def gas_policy(config: Config) -> GasPolicy:
    return GasPolicy(
        posts=config.budget_posts_gas,
        work=config.budget_work_gas,
        upkeep=config.budget_upkeep_gas,
        unlisted_upkeep=config.budget_unlisted_upkeep_gas,
        newcomers=config.budget_newcomers_gas,
        per_settled=config.budget_gas_per_settled,
        hourly_percent=config.budget_hourly_percent,
    )


def storage_budgets(config: Config) -> StorageBudgets:
    return StorageBudgets(
        new_bytes=config.storage_new_bytes,
        new_rows=config.storage_new_rows,
        most_bytes=config.storage_bytes,
        most_rows=config.storage_rows,
        newcomers_bytes=config.storage_newcomers_bytes,
        newcomers_rows=NEWCOMERS_ROWS,
    )
