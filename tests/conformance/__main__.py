"""Check your own coordinator, provider, client or reader of the formats against the protocol.

python -m tests.conformance coordinator|provider|client|vectors
"""

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import click
import httpx

from common.box import PublicKey
from common.checks import CheckResult, CheckRow
from common.refusal import Refused
from common.scalars import read_hex
from svc.cli.exit_codes import ExitCode
from svc.cli.output import Output
from svc.key_files import read_wallet
from tests.conformance.client import Buy, ClientTrial
from tests.conformance.coordinator import Trial, try_coordinator
from tests.conformance.faulty_markets import PURCHASES
from tests.conformance.provider import ProviderTrial
from tests.conformance.provider_market import ProviderMarket
from tests.conformance.serving import serving
from tests.conformance.vectors import try_vectors
from tests.conformance.verdicts import Report

_STDERR = 2
_OF_A_MARKET = frozenset(
    f"SVC_{name}" for name in ("RPC_URL", "ADDRESSES", "ADDRESSES_FILE", "KNOWN_MARKETS", "CONFIG", "PROFILE")
)


@click.group()
def conformance() -> None:
    """Check your own coordinator, provider, client or reader of the formats against the protocol.

    Each command prints a row for each check: right, WRONG with what was expected and the page that promises it, or
    unknown. It exits with 0 when nothing is wrong and with 9 when something is.

    \b
      python -m tests.conformance coordinator --coordinator https://coordinator.example
      python -m tests.conformance provider --port 8500 --addresses-out book.json -- my-provider --config my.toml
      python -m tests.conformance client -- my-client buy
      python -m tests.conformance vectors --folder tests/vectors -- my-reader
    """


def _reports(body: Callable[..., Awaitable[Report]]) -> Callable[..., None]:
    """Make a command from a function that returns a report. Print wrong rows at once, and the table at the end."""

    @click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
    @click.option("--quiet", "-q", is_flag=True, help="Show no remarks during the run.")
    @functools.wraps(body)
    def command(*, as_json: bool, quiet: bool, **given: Any) -> None:
        output = Output(as_json=as_json, quiet=quiet)

        def report_fault(row: CheckRow) -> None:
            if row.result is CheckResult.WRONG:
                output.write_note(f"WRONG  {row.what}: {row.text}")

        async def run() -> Report:
            return await body(Report(listeners=[report_fault]), output, **given)

        try:
            report = anyio.run(run)
        except* Refused as refused:
            raise click.UsageError(_message(refused)) from None
        sys.exit(_shown(report, output))

    return command


def _shown(report: Report, output: Output) -> ExitCode:
    output.show_checks(report.rows)
    output.write_note(f"{len(report.right)} right, {len(report.wrong)} WRONG, {len(report.unknown)} unknown")
    return ExitCode.DONE if report.holds else ExitCode.UNHEALTHY


_command = click.argument("command", nargs=-1, type=click.UNPROCESSED, help="A program, and what it is called with.")


@conformance.command()
@click.option("--coordinator", "base_url", metavar="URL", required=True, help="The coordinator to try.")
@click.option("--gateway", metavar="URL", help="Where its results are read; for purchases.")
@click.option("--model", help="What to quote and buy.  [default: the first of the catalogue]")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A wallet with a little of the payment token, as svc keygen writes it.",
)
@click.option("--spend", is_flag=True, help="Buy a job and a batch of one line with that wallet.")
@_reports
async def coordinator(
    report: Report,
    output: Output,
    *,
    base_url: str,
    gateway: str | None,
    model: str | None,
    key_file: Path | None,
    spend: bool,
) -> Report:
    """Try a coordinator over HTTP, with about 160 valid and invalid requests.

    Without --spend nothing is paid: a throw-away wallet signs in, uploads, makes two batches of lines that order
    nothing, and requests quotes. With --spend the wallet cancels an order, and buys a job and a batch of one line from
    the cheapest provider. Run it against a quiet coordinator, because a busy one answers with its limits.
    """
    if spend and key_file is None:
        raise Refused("--spend needs a wallet to spend from: name its file with --key-file")
    wallet = read_wallet(key_file) if spend and key_file is not None else None
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=90) as http:
        return await try_coordinator(http, Trial(wallet, model, gateway), report)


@conformance.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the scripted market; 0: a free one.")
@click.option("--model", default="demo/text-small", help="The name of the model that the provider sells.")
@click.option("--box-key", metavar="HEX", help="The provider's box key, where it does not publish it by set_identity.")
@click.option("--addresses-out", type=click.Path(path_type=Path), help="Write the market's address book there.")
@click.option("--patience", type=click.FloatRange(1, 3600), default=60.0, help="Seconds for each round of jobs.")
@_command
@_reports
async def provider(
    report: Report,
    output: Output,
    *,
    port: int,
    model: str,
    box_key: str | None,
    addresses_out: Path | None,
    patience: float,
    command: Sequence[str],
) -> Report:
    """Try a provider in a scripted market: coordinator, escrow, gateway and node are one address on this machine.

    Start the provider yourself, or name its command. The command gets SVC_BASE_URL, SVC_PIN_GATEWAY, SVC_RPC_URL,
    SVC_ADDRESSES (the address book, as JSON), SVC_ADDRESSES_FILE (the same, in a file) and SVC_MODEL in addition to
    your environment. Any wallet works: the first to sign in is registered. The provider gets 27 jobs, and is
    judged by its signatures and by how the jobs end.
    """
    market = ProviderMarket(model=model)
    if box_key is not None:
        market.box_key = PublicKey(read_hex(box_key, 32, "--box-key"))
    async with serving(market.handle, port=port) as url:
        output.write_note(f"market: {url} (coordinator, gateway), {url}/rpc (node); waiting for a provider")
        with tempfile.TemporaryDirectory() as folder:
            book = addresses_out if addresses_out is not None else Path(folder) / "addresses.json"
            book.write_text(json.dumps(market.book.as_json(), indent=2) + "\n", encoding="utf-8")
            async with _child(command, _environment(url, book, model)):
                return await ProviderTrial(market, report, patience, arrival=patience).run()


@conformance.command()
@click.option("--open-command", metavar="COMMAND", help="The client's command for an open bid, in one argument.")
@click.option("--model", default="demo/text-small", help="The name of the model that the client buys.")
@click.option("--patience", type=click.FloatRange(1, 3600), default=60.0, help="Seconds for each run of the command.")
@click.option("--at-once", type=click.IntRange(1, 64), default=4, help="Runs of the command side by side.")
@_command
@_reports
async def client(
    report: Report,
    output: Output,
    *,
    open_command: str | None,
    model: str,
    patience: float,
    at_once: int,
    command: Sequence[str],
) -> Report:
    """Try a client: its command is run once in each of about twenty markets, and must buy one job.

    The environment has SVC_BASE_URL, SVC_PIN_GATEWAY, SVC_ADDRESSES (the market's address book, as JSON),
    SVC_ADDRESSES_FILE (the same, in a file), SVC_MODEL, SVC_INPUT (the text to send, as the member `input`) and
    SVC_WALLET_KEY (a throw-away key), and no SVC_RPC_URL. SVC_KNOWN_MARKETS is empty, which keeps svc from remembering
    keys between runs. Other clients ignore it. The command must write the result body's member `output` to standard
    output, as JSON, and exit with 0. If it rejects the market, it must write no output and exit with another code.
    """
    if not command:
        raise Refused("a client is tried by running it: name its command after --")
    buy, buy_open = bought_by(command), bought_by(shlex.split(open_command)) if open_command else None
    output.write_note(f"{len(PURCHASES)} markets, {at_once} runs at a time")
    return await ClientTrial(report, buy, buy_open, model, patience, at_once).run()


@conformance.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("tests/vectors"),
    help="The vectors' JSON files.",
)
@click.option("--only", metavar="FILES", help="Names of files, comma-separated: container,result.")
@_command
@_reports
async def vectors(report: Report, output: Output, *, folder: Path, only: str | None, command: Sequence[str]) -> Report:
    """Feed the test vectors to a program as lines of JSON, and compare its output.

    The program reads {"file", "name", "case"} from standard input and answers each with one line: {"refused": …} with
    any value except false and null if it refuses the case, {"skip": true} if it does not implement it, or an object
    with the outputs that docs/protocol/vectors.md names for the file. `case` holds only the inputs.
    """
    if not command:
        raise Refused("the vectors need a program to feed: name its command after --")
    return await try_vectors(folder, only.split(",") if only else None, command, report)


# --- helpers --------------------------------------------------------------------------------------------------


def _message(refused: BaseException) -> str:
    """Return the message of the first error, which a task group may have wrapped."""
    while isinstance(refused, BaseExceptionGroup):
        refused = refused.exceptions[0]
    return str(refused)


def _environment(url: str, book: Path, model: str) -> dict[str, str]:
    return {
        "SVC_BASE_URL": url,
        "SVC_PIN_GATEWAY": url,
        "SVC_RPC_URL": f"{url}/rpc",
        "SVC_ADDRESSES": book.read_text(encoding="utf-8"),
        "SVC_ADDRESSES_FILE": str(book),
        "SVC_MODEL": model,
    }


def _told(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a program under test, without the caller's settings for another market."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_MARKET} | dict(environment)


def bought_by(command: Sequence[str]) -> Buy:
    async def buy(environment: Mapping[str, str]) -> tuple[int, str]:
        try:
            ran = await anyio.run_process(list(command), env=_told(environment), check=False, stderr=_STDERR)
        except OSError as error:
            raise Refused(f"{command[0]}: {error.strerror}") from None
        return ran.returncode, ran.stdout.decode("utf-8", "replace")

    return buy


@asynccontextmanager
async def _child(command: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[None]:
    """Run the program during the block. Its output goes to standard error."""
    if not command:
        yield
        return
    try:
        process = subprocess.Popen(command, env=_told(environment), stdout=_STDERR)  # noqa: ASYNC220
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}") from None
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    conformance(prog_name="python -m tests.conformance")
