"""Settings without budgets, for benches and soaks: one wallet does there in minutes what a market's does in days."""

from typing import Final

UNLIMITED: Final = {
    "BUDGET_WALLET_GAS": "0",
    "BUDGET_NEWCOMERS_GAS": "0",
    "STORAGE_BYTES": "0",
    "STORAGE_NEWCOMERS_BYTES": "0",
}
