import os
import re
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.daemon.process import Fatal
from devnet.ports import pick_free
from svcd.journal import entries
from svcd.journal.book_row import Job
from svcd.journal.journal import JOURNAL_FILE
from svcd.run.cli import main
from svcd.run.commands import _read_new_password
from tests.support.fakes.market import START, Market


def _configuration(state: Path, port: int) -> str:
    return f"""\
state_directory = "{state}"
[coordinator]
url = "https://coordinator.example"
[gateway]
urls = ["https://gateway.example"]
[metrics]
port = {port}
[[model]]
name = "m"
slots = 1
ask = [{{ sla_seconds = 60, rate_in = "1", rate_out = "1" }}]
backend = {{ kind = "echo" }}
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["svcd", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_keys_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "keygen", "--out", str(tmp_path)) == 0
    assert "operator 0x" in capsys.readouterr().out
    assert run(monkeypatch, "keygen", "--out", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"svcd: {tmp_path}/wallet.key already exists; choose another folder\n"


@pytest.mark.parametrize(("options", "status"), [((), 3), (("--dry-run",), 0)])
def test_waiting_registration_has_its_own_exit_status(
    options: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_admitted(*_: object) -> bool:
        return False

    monkeypatch.setattr("svcd.run.commands.register_provider", not_admitted)
    # logging would stay configured for other tests
    monkeypatch.setattr("svcd.run.commands.set_up_logging", lambda _: None)
    monkeypatch.setattr("svcd.run.commands.read_config", lambda _: None)
    assert run(monkeypatch, "register", "--config", "svcd.toml", *options) == status


@pytest.mark.parametrize("command", ["run", "check", "identity", "status"])
def test_mistake_in_the_configuration_is_one_line_and_exit_1(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "svcd.toml"
    assert run(monkeypatch, command, "--config", str(config)) == 1
    absent = f'svcd: settings file not found: {config} (create it with "svcd init --config {config}")\n'
    assert capsys.readouterr().err == absent
    config.write_text('\nstate_directory = "relative"\n')
    assert run(monkeypatch, command, "--config", str(config)) == 1
    assert capsys.readouterr().err == f"svcd: {config}: state_directory must be an absolute path, not 'relative'\n"


def test_status_without_keys_reads_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, port = tmp_path / "svcd.toml", pick_free()
    config.write_text(_configuration(tmp_path, port=port))
    market = Market(lambda: START)
    with closing(entries.open_database(tmp_path / JOURNAL_FILE)) as connection:
        for reason in ("undecryptable", "backend_error", "backend_error"):
            job = Job.read(market.jobs[market.post()])
            connection.execute(*entries.insert_claiming(job, "m", START))
            connection.execute(*entries.mark_ended(job.job_id, "failed", reason, START))
    assert run(monkeypatch, "status", "--config", str(config)) == 1
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said == [
        f"WRONG daemon does not answer on http://127.0.0.1:{port} (ConnectError): start it, or read its log",
        "journal: failed (backend_error) 2",
        "journal: failed (undecryptable) 1",
        "1 wrong: daemon",
    ]


def test_status_gives_the_reason_for_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unhealthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/healthz" else 200)
            self.send_header("x-svcd-reason", "no poll was answered lately: m")
            self.end_headers()
            self.wfile.write(b"unhealthy\n" if self.path == "/healthz" else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Unhealthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = tmp_path / "svcd.toml"
        config.write_text(_configuration(tmp_path, port=server.server_address[1]))
        assert run(monkeypatch, "status", "--config", str(config)) == 1
        server.shutdown()
        thread.join()
    assert "daemon   unhealthy: no poll was answered lately: m\n" in capsys.readouterr().out


def test_status_reports_a_missing_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "svcd.toml"
    config.write_text(_configuration(tmp_path, port=0))
    (tmp_path / JOURNAL_FILE).write_bytes(b"an editor's text, no journal" * 10)
    assert run(monkeypatch, "status", "--config", str(config)) == 1
    assert "file is not a database" in capsys.readouterr().out


def test_reader_that_has_read_enough_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "svcd.toml").write_text(_configuration(tmp_path, port=0))
    gone, end = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "svcd", "status", "--config", str(tmp_path / "svcd.toml")]
    done = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(end)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("content", "said"),
    [("pässword".encode(), "must contain a password in ASCII characters"), (None, "cannot be read (No such file")],
)
def test_unreadable_password_creates_no_key(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Fatal, match=re.escape(said)):
        _read_new_password(file)


def test_daemon_imports_no_transaction_or_keystore_reader() -> None:
    program = "import sys, svcd.run.commands; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "trio" in loaded
    assert {"eth_account", "eth_abi", "eth_utils", "web3", "ckzg", "pydantic", "pycparser"} & set(loaded) == set()


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_idle_command_line_imports_no_stage_or_network(option: str) -> None:
    code = (
        "import sys; from svcd.run.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'httpx', 'trio', 'structlog', 'rich', 'svcd.run.app', 'common.secp256k1'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout
