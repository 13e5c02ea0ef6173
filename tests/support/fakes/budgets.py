"""Settings without budgets, for benchmarks and soaks: one wallet does in minutes the work of days in a market."""

from typing import Final

UNLIMITED: Final = {
    "BUDGET_WALLET_GAS": "0",
    "BUDGET_NEWCOMERS_GAS": "0",
    "STORAGE_BYTES": "0",
    "STORAGE_NEWCOMERS_BYTES": "0",
}
