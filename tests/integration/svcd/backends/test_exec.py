import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from common.daemon.process import Fatal
from svcd.backends import confined
from svcd.backends.backend import Backend
from svcd.backends.build import open_backend
from svcd.base.end_reasons import WorkFailed
from tests.support.fakes.backend_settings import read_backend
from tests.support.fakes.provider_work import work_on

pytestmark = pytest.mark.trio

# A child of the program that would outlive it. It writes its id to a known file.
WITH_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen(["/bin/sleep", "600"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
"""


@asynccontextmanager
async def program(
    text: str, *arguments: str, private: Sequence[Path] = (), **entries: object
) -> AsyncIterator[Backend]:
    command = [sys.executable, "-S", "-c", text, *arguments]
    table = {"kind": "exec", "command": command, "backoff_s": 0, "grace_s": 0.1, **entries}
    async with open_backend(read_backend(table), private) as backend:
        yield backend


async def until_written(path: Path) -> list[int]:
    with trio.fail_after(60):
        while not (pids := written(path)):  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.005)
    return pids


def written(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie counts as ended, because svcd does not control who reaps an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_dead(pids: list[int]) -> None:
    with trio.fail_after(60):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110 - the kernel tells no event of others' children
            await trio.sleep(0.005)


async def test_the_program_gets_the_work_and_its_answer_is_the_output() -> None:
    text = (
        "import json, sys; work = json.load(sys.stdin);"
        "print(json.dumps({'output': sorted(work), 'completion_tok': 7, 'usage': {'steps': work['units_out']}}))"
    )
    async with program(text) as backend:
        output = await backend.run(work_on(deadline=trio.current_time() + 60))
        assert await backend.is_up()
    assert output.output == ["input", "job_id", "modality", "model", "seconds", "units_in", "units_out"]
    assert (output.completion_tok, output.usage) == (7, {"steps": 100})


@pytest.mark.parametrize(
    ("answer", "units"),
    [('{"output": "12345"}', 2), ('{"output": "", "completion_tok": 900}', 100)],
    ids=["counted by length", "never above the order"],
)
async def test_what_is_charged_is_bounded_and_has_a_measure(answer: str, units: int) -> None:
    async with program(f"print('{answer}')") as backend:
        assert (await backend.run(work_on())).completion_tok == units


async def test_of_svcds_own_environment_nothing_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVCD_WALLET_KEY", "secret")
    text = "import json, os; print(json.dumps({'output': sorted(os.environ)}))"
    async with program(text, environment={"MODEL_HOME": "/models"}) as backend:
        output = (await backend.run(work_on())).output
    assert set(output) - {"LC_CTYPE"} == {"MODEL_HOME", "PATH"}  # type: ignore[call-overload]  # a list of names


@pytest.mark.parametrize(
    ("text", "reason", "fault"),
    [
        ("import sys; sys.exit(65)", "backend_error", False),
        ("import sys; sys.exit(1)", "backend_error", True),
        ("import sys; sys.exit(75)", "backend_exhausted", True),
        ("import os; os.kill(os.getpid(), 9)", "backend_error", True),
        ("print('no json')", "backend_exhausted", True),
        ("print('{}')", "backend_error", True),
        ('print(\'{"output": 1, "completion_tok": -1}\')', "backend_error", True),
        ("print('x' * 5000)", "backend_error", True),
    ],
    ids=["65", "1", "75", "killed", "no json", "no output", "a wrong count", "too long"],
)
async def test_how_a_program_ends_says_whose_fault_it_is(text: str, reason: str, fault: bool) -> None:
    async with program(text, max_answer_bytes=4096) as backend:
        with pytest.raises(WorkFailed) as failed:
            await backend.run(work_on())
    assert (failed.value.reason, failed.value.backend_fault) == (reason, fault)


async def test_its_last_complaint_is_kept_and_no_more_of_it() -> None:
    async with program("import sys; sys.stderr.write('x' * 100000 + 'the end'); sys.exit(1)") as backend:
        with pytest.raises(WorkFailed) as failed:
            await backend.run(work_on())
    assert failed.value.detail.endswith("the end")
    assert len(failed.value.detail) < 3000


async def test_a_program_that_asks_for_another_attempt_gets_one(tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "if not os.path.exists(sys.argv[1]): open(sys.argv[1], 'w'); sys.exit(75)\n"
        "print('{\"output\": 1}')"
    )
    async with program(text, str(tmp_path / "mark")) as backend:
        assert (await backend.run(work_on())).output == 1


async def test_a_program_may_end_without_reading_what_it_is_told() -> None:
    async with program("print('{\"output\": 1}')") as backend:
        assert (await backend.run(work_on({"input": "x" * 10**6}))).output == 1


async def test_missing_program_is_the_providers_fault() -> None:
    async with open_backend(read_backend({"kind": "exec", "command": ["/nonexistent/model"]})) as backend:
        with pytest.raises(WorkFailed) as failed:
            await backend.run(work_on())
        assert not await backend.is_up()
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_error", True)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_at_the_deadline_the_whole_group_is_ended(tmp_path: Path, stubborn: bool) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    text = ignoring + WITH_CHILD + "time.sleep(600)"
    async with program(text, str(tmp_path / "pids")) as backend:
        with pytest.raises(WorkFailed) as failed:
            await backend.run(work_on(deadline=trio.current_time() + 1))
    assert failed.value.reason == "deadline_wait"
    await until_dead(await until_written(tmp_path / "pids"))


async def test_a_cancelled_job_leaves_nothing_running(tmp_path: Path) -> None:
    async with program(WITH_CHILD + "time.sleep(600)", str(tmp_path / "pids")) as backend, trio.open_nursery() as jobs:
        jobs.start_soon(backend.run, work_on())
        pids = await until_written(tmp_path / "pids")
        assert all(alive(pid) for pid in pids)
        jobs.cancel_scope.cancel()
    await until_dead(pids)


async def test_leftover_processes_end_with_their_program(tmp_path: Path) -> None:
    async with program(WITH_CHILD + "print('{\"output\": 1}')", str(tmp_path / "pids")) as backend:
        with trio.fail_after(60):
            assert (await backend.run(work_on())).output == 1
    await until_dead(await until_written(tmp_path / "pids"))


async def test_escaped_orphan_does_not_delay_a_finished_job(tmp_path: Path) -> None:
    text = WITH_CHILD.replace('"600"]', '"600"], start_new_session=True') + "print('{\"output\": 1}', flush=True)"
    async with program(text, str(tmp_path / "pids")) as backend:
        with trio.fail_after(60):
            assert (await backend.run(work_on())).output == 1
    os.kill((await until_written(tmp_path / "pids"))[1], signal.SIGKILL)


# Try everything a program could do to a file and to svcd's process, and print what succeeded.
REACHES = """
import json, os, subprocess, sys
def works(act):
    try:
        act()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
path, parent = sys.argv[1], os.getppid()
tried = {
    "read": lambda: open(path).read(),
    "write": lambda: open(path, "a").write("x"),
    "beside": lambda: open(os.path.join(os.path.dirname(path), "new"), "w").write("x"),
    "link": lambda: os.link(path, path + ".copy"),
    "memory": lambda: open(f"/proc/{parent}/mem", "rb").read(0),
    "child": lambda: subprocess.run(["/bin/cat", path], stdout=subprocess.DEVNULL, check=True),
    "move": lambda: os.rename(os.path.dirname(path), os.path.dirname(path) + ".moved"),
}
print(json.dumps({"output": [name for name, act in tried.items() if works(act)]}))
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Create a key where svcd keeps its keys, in a separate folder."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "wallet.key").write_text("secret")
    return folder / "wallet.key"


needs_landlock = pytest.mark.skipif(confined.landlock_version() == 0, reason="this kernel has no Landlock")


@needs_landlock
@pytest.mark.parametrize("where", ["folder", "file", "link"])
async def test_program_cannot_read_svcds_keys_or_memory(where: str, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(secret)
    private = {"folder": secret.parent, "file": secret, "link": tmp_path / "link"}[where]
    async with program(REACHES, str(secret), private=[private]) as backend:
        reached = (await backend.run(work_on())).output
    # If only the file is named, its folder is not writable either: files cannot be added or moved.
    assert reached == []


@needs_landlock
async def test_a_program_works_as_ever_with_all_that_is_not_svcds_own(secret: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    other.mkdir()
    (other / "weights").write_text("free")
    async with program(REACHES, str(other / "weights"), private=[secret.parent]) as backend:
        reached = (await backend.run(work_on())).output
    assert reached == ["read", "write", "beside", "link", "child"]


async def test_without_confinement_a_program_reads_what_its_user_can(secret: Path) -> None:
    async with program(REACHES, str(secret), private=[secret.parent], confine=False) as backend:
        assert {"read", "memory"} <= set((await backend.run(work_on())).output)  # type: ignore[arg-type]


async def test_backend_that_cannot_protect_keys_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "landlock_version", lambda: 0)
    with pytest.raises(Fatal, match="no Landlock"):
        async with program("print()"):
            raise AssertionError("it was opened")
