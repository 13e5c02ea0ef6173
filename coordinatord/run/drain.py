"""Drain a replaced relayer account: follow its transactions until all are final and its key is not needed."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.base.startup import StartupRetry
from coordinatord.chain.relayer.transactions_sql import read_account_usages
from coordinatord.chain.relayer.worker import run_relayer
from coordinatord.run.config import Config
from coordinatord.run.constructors import relayer_settings
from coordinatord.run.dependencies import (
    Dependencies,
    migrate_and_check_chain,
    open_dependencies,
    relayer_rpc,
    watch_nodes,
)
from coordinatord.run.keys import KEY_SETTLED_AFTER_S, is_drained

log = structlog.get_logger(__name__)

_CHECK_INTERVAL_S: Final = 5.0


async def drain(config: Config, settled_s: float = KEY_SETTLED_AFTER_S) -> None:
    """Follow the account's transactions, and sign only replacements. Return when the key is no longer needed."""
    async with AsyncExitStack() as stack:
        startup = StartupRetry(config.limits.startup_timeout_s)
        dependencies = await startup.retry_until_ready("the database", partial(open_dependencies, config, stack))
        await migrate_and_check_chain(dependencies, startup)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dependencies.supervisor.run, "relayer", partial(_follow_transactions, dependencies))
            if len(dependencies.nodes.all) > 1:
                tasks.start_soon(dependencies.supervisor.run, "nodes", partial(watch_nodes, dependencies))
            await _wait_until_drained(dependencies, settled_s)
            tasks.cancel_scope.cancel()
    log.info("account drain finished", account="0x" + dependencies.relayer.address.hex())


async def _follow_transactions(dependencies: Dependencies) -> None:
    await run_relayer(
        dependencies.database,
        dependencies.notices,
        relayer_rpc(dependencies),
        dependencies.relayer,
        chain_id=dependencies.config.addresses.chain_id,
        settings=attrs.evolve(relayer_settings(dependencies.config), replacements_only=True),
    )


async def _wait_until_drained(dependencies: Dependencies, settled_s: float) -> None:
    while True:
        if await _is_drained(dependencies, settled_s):
            return
        await anyio.sleep(_CHECK_INTERVAL_S)


async def _is_drained(dependencies: Dependencies, settled_s: float) -> bool:
    try:
        async with dependencies.database.connection() as connection:
            uses = await read_account_usages(connection, dependencies.config.addresses.chain_id)
    except Retryable as error:
        log.warning("account not read", reason=error.message)
        return False
    return all(is_drained(use, settled_s) for use in uses if use.account == dependencies.relayer.address)
