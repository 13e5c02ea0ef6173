"""The program `coordinatord`, whose `serve` takes limits from TEST_LIMITS.

TEST_LIMITS='{"body_stall_timeout_s": 1}' python -m tests.support.coordinator serve
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.daemon.secrets import hide_memory
from coordinatord.__main__ import main as coordinatord
from coordinatord.chain.relayer.budgets import GasPolicy
from coordinatord.run.commands import run_command
from coordinatord.run.config import Config, read_config
from coordinatord.run.limits import Limits
from coordinatord.storage.pins.storage_budgets import StorageBudgets

VARIABLE: Final = "TEST_LIMITS"


def limits_of(values: Mapping[str, Any]) -> Limits:
    """Return the limits. `gas` and `storage` are the fields of their policies."""
    gas, storage = values.get("gas"), values.get("storage")
    policies = {
        "gas": None if gas is None else GasPolicy(**gas),
        "storage": None if storage is None else StorageBudgets(**storage),
    }
    return Limits(**{**values, **policies})


def config_of(environment: Mapping[str, str]) -> Config:
    """Return the configuration that the program has in this environment."""
    return attrs.evolve(read_config(environment), limits=limits_of(json.loads(environment[VARIABLE])))


def main() -> None:
    given = os.environ.get(VARIABLE)
    if given is None or sys.argv[1:] != ["serve"]:
        coordinatord()
        return
    hide_memory()
    run_command("serve", limits=limits_of(json.loads(given)))


if __name__ == "__main__":
    main()
