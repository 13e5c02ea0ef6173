"""Settings without budgets, for benches and soaks: one wallet does there in minutes what a market's does in days."""

from typing import Final

from coordinatord.run.config import variables

UNLIMITED: Final = {
    name: "0"
    for field in variables()
    if (name := str(field.metadata["variable"])).startswith(("BUDGET_", "STORAGE_")) and name != "BUDGET_HOURLY_PERCENT"
}
