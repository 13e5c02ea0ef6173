import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from svc import files, jobs, market, sync_client
from svc.batches import batches
from svc.client import Client
from svc.errors import NotFound
from svc.sync_client import SyncClient
from tests.unit.svc.fake_coordinator import Answer, FakeCoordinator, job

JOB = "0x" + "07" * 32
TWINS = [
    (Client, SyncClient),
    (market.Models, sync_client.SyncModels),
    (market.Market, sync_client.SyncMarket),
    (jobs.Jobs, sync_client.SyncJobs),
    (files.Files, sync_client.SyncFiles),
    (batches.Batches, sync_client.SyncBatches),
]


@pytest.mark.parametrize(("awaited", "blocking"), TWINS, ids=[blocking.__name__ for _, blocking in TWINS])
def test_everything_that_can_be_awaited_can_be_called(awaited: type, blocking: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {
            "account",
            "files",
            "preparation",
            "result_files",
        }

    assert public(awaited) - {"aclose"} - public(blocking) == set()


def test_calls_return_and_raise_as_the_awaited_ones_do() -> None:
    coordinator = FakeCoordinator()
    with coordinator.sync_client() as client:
        assert client.models.get("demo/text").svc.model_id == 1
        assert client.chain().chain_id == 31337
        with pytest.raises(NotFound):
            client.jobs.get("0x" + "07" * 32)


def test_signatures_and_words_are_those_of_the_awaited_methods() -> None:
    assert inspect.signature(SyncClient.run) == inspect.signature(Client.run)
    assert SyncClient.run.__doc__ == Client.run.__doc__


def test_error_in_the_block_ends_what_other_threads_wait_for() -> None:
    waiting = f"GET /v1/jobs/{JOB}"
    coordinator = FakeCoordinator({waiting: [Answer(200, job(JOB))]})
    asked = threading.Event()
    outcome: list[BaseException] = []

    def wait(client: SyncClient) -> None:
        try:
            client.jobs.wait(JOB, on_change=lambda _: asked.set())
        except BaseException as error:
            outcome.append(error)

    def interrupted() -> None:
        with coordinator.sync_client() as client:
            threads.append(threading.Thread(target=wait, args=(client,)))
            threads[0].start()
            asked.wait(10)
            raise KeyboardInterrupt

    threads: list[threading.Thread] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    threads[0].join(10)
    assert [type(error).__name__ for error in outcome] == ["CancelledError"]


UNCLOSED = """
import threading
from tests.unit.svc.fake_coordinator import FakeCoordinator

client = FakeCoordinator().sync_client()
print(client.chain().chain_id)
"""
USED_BY_A_THREAD = """
main_has_ended = threading.main_thread().join
threading.Thread(target=lambda: (main_has_ended(), print(client.models.get("demo/text").id))).start()
"""


@pytest.mark.parametrize(
    ("script", "printed"), [(UNCLOSED, ["31337"]), (UNCLOSED + USED_BY_A_THREAD, ["31337", "demo/text"])]
)
def test_unclosed_client_does_not_hang_the_exit(script: str, printed: list[str]) -> None:
    """Another thread may use the client after the main thread has ended."""
    here = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == printed
