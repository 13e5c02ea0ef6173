"""A batch worker in a separate process that tests can kill. It is forked from a warm server because tests kill it many
times."""

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.context import ForkServerProcess

import anyio
import attrs

from coordinatord.run import app
from coordinatord.run.config import read_config
from coordinatord.run.dependencies import open_dependencies

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["coordinatord.run.app"])


@contextmanager
def batch_worker_process(environment: Mapping[str, str], max_lines: int) -> Iterator[ForkServerProcess]:
    """Run a worker that records `max_lines` at a time. Kill it with SIGKILL when the block ends, if it is still
    running."""
    process = _CONTEXT.Process(target=_run, args=(dict(environment), max_lines))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def _run(environment: dict[str, str], max_lines: int) -> None:
    anyio.run(_work, environment, max_lines, backend_options={"use_uvloop": True})


async def _work(environment: dict[str, str], max_lines: int) -> None:
    async with AsyncExitStack() as stack:
        ground = await open_dependencies(read_config(environment), stack)
        worker = app.build_batch_worker(ground)
        await attrs.evolve(worker, expander=attrs.evolve(worker.expander, max_lines=max_lines)).run()
