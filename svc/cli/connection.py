"""Add connection options to commands, open their client, and turn errors into exit codes."""

import functools
import os
import shlex
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import list2cmdline
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import click

from common.refusal import Refused
from common.settings.reader import settings_of, unknown_variables
from common.tracing import spans
from common.tracing.export import exporting
from svc.cli import failures
from svc.cli.exit_codes import ExitCode
from svc.cli.output import Output
from svc.errors import NO_WALLET, OrderRefused, SvcError
from svc.profiles import CONFIG_VARIABLE, PROFILE_VARIABLE, read_variables
from svc.variables import PREFIX, Variables, variable_name
from svc.wallets import KEY_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, read_signer

if TYPE_CHECKING:
    from svc.client import Client

CommandBody = Callable[..., Awaitable[ExitCode | None]]

_CONNECTION_OPTIONS: Final = (
    *("profile", "base_url", "gateways", "key_file", "addresses", "rpc_url"),
    *("escrow_keys", "allow_mock_escrow", "insecure_http"),
)


@attrs.frozen
class Connection:
    """Coordinator, wallet and output of a command."""

    profile: str | None
    base_url: str | None
    gateways: str | None
    key_file: Path | None
    addresses: Path | None
    rpc_url: str | None
    escrow_keys: tuple[str, ...]
    allow_mock_escrow: bool
    insecure_http: bool
    output: Output

    @asynccontextmanager
    async def client(self, *, wallet: bool | None = False) -> "AsyncIterator[Client]":
        """Open a client.

        `wallet`: True requires a wallet before any request, None uses a wallet if one is configured, False uses none.
        """
        try:
            environment = {**os.environ, PROFILE_VARIABLE: self.profile} if self.profile else os.environ
            signer = None
            if wallet is not False:
                signer = read_signer(read_variables(environment), self.key_file, ask_password)
            if wallet and signer is None:
                raise Refused(NO_WALLET, KEY_FILE_VARIABLE)
            from svc.client import Client  # noqa: PLC0415

            client = Client(
                self.base_url,
                gateways=self.gateways,
                signer=signer,
                without_wallet=True,
                addresses=self.addresses,
                rpc_url=self.rpc_url,
                on_first_use=self.output.warn,
                escrow_keys=self.escrow_keys,
                allow_mock_escrow=self.allow_mock_escrow,
                insecure_http=self.insecure_http or None,
                environment=environment,
            )
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        async with client:
            yield client

    def command_line(self, *arguments: str) -> str:
        """Return a command line with these arguments, and with the connection options of this command."""
        flags = (
            ("--profile", self.profile),
            ("--coordinator", self.base_url),
            ("--gateway", self.gateways),
            ("--key-file", self.key_file),
            ("--addresses", self.addresses),
            ("--rpc-url", self.rpc_url),
            ("--insecure-http", "" if self.insecure_http else None),
        )
        options = [word for flag, value in flags if value is not None for word in (flag, str(value)) if word]
        # Quote for the platform's shell.
        join = list2cmdline if sys.platform == "win32" else shlex.join
        return join(["svc", *arguments, *options])


def ask_password(path: Path) -> str:
    """Prompt for the password of a keystore on the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"{path} is encrypted, and there is no terminal to ask for its password: set {PASSWORD_FILE_VARIABLE}"
        raise Refused(message, PASSWORD_FILE_VARIABLE)
    password: str = click.prompt(f"Password of {path}", hide_input=True, err=True)
    return password


def add_connection_options(body: CommandBody) -> Callable[..., ExitCode]:
    """Add the connection options to an asynchronous command, and pass a `Connection` as its first argument."""

    @click.option("--profile", metavar="NAME", help="Profile to use.  [env: SVC_PROFILE]")
    @click.option("--coordinator", "base_url", metavar="URL", help="Address of the coordinator.  [env: SVC_BASE_URL]")
    @click.option(
        "--gateway", "gateways", metavar="URLS", help="Gateways to read results from.  [env: SVC_PIN_GATEWAY]"
    )
    @click.option(
        "--key-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Wallet key file or keystore.  [env: SVC_WALLET_KEY_FILE]",
    )
    @click.option(
        "--addresses",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Address book of the market.  [env: SVC_ADDRESSES_FILE]",
    )
    @click.option(
        "--rpc-url", metavar="URLS", help="Nodes of the chain to check against; they must agree.  [env: SVC_RPC_URL]"
    )
    @click.option(
        "--insecure-http", is_flag=True, help="Allow plain http:// to other machines.  [env: SVC_INSECURE_HTTP]"
    )
    @click.option(
        "--escrow-key", "escrow_keys", metavar="HEX", multiple=True, help="Seal open orders only to this escrow key."
    )
    @click.option("--allow-mock-escrow", is_flag=True, help="Seal open orders to a development escrow, for tests.")
    @click.option("--json", "as_json", is_flag=True, help="Write results and errors as JSON.")
    @click.option("--quiet", "-q", is_flag=True, help="Hide notes and progress.")
    @functools.wraps(body)
    def command(*, as_json: bool, quiet: bool, **options_given: Any) -> ExitCode:
        output = Output(as_json=as_json, quiet=quiet)
        connection_options = {name: options_given.pop(name) for name in _CONNECTION_OPTIONS}
        return _run_command(
            output, functools.partial(body, Connection(output=output, **connection_options), **options_given)
        )

    return command


def trace_command(body: CommandBody) -> CommandBody:
    """Run a command inside one trace span, so that the spans of the command's orders belong to one trace."""

    @functools.wraps(body)
    async def command(*arguments: Any, **options: Any) -> ExitCode | None:
        with spans.span("request"):
            return await body(*arguments, **options)

    return command


@attrs.frozen
class _TraceReporter:
    """Reporter that warns the user when the trace of a command is missing or incomplete."""

    output: Output

    def report_start_failure(self, reason: str) -> None:
        self.output.warn(f"the command is not traced: {reason}")

    def report_first_drop(self, reason: str) -> None:
        self.output.warn(f"the trace is incomplete: {reason}")

    def report_drop_count(self, count: int) -> None:
        """Report nothing. A command has one trace, so the warning about the first drop is enough."""


def _run_command(output: Output, body: Callable[[], Awaitable[Any]]) -> ExitCode:
    known = [CONFIG_VARIABLE, PROFILE_VARIABLE, *(variable_name(each.name) for each in settings_of(Variables))]
    svc_variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    for name, similar in unknown_variables(svc_variables, known).items():
        if similar is not None:
            output.warn(f"{name} is not a setting (did you mean {similar}?)")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: output.warn(str(message))
            with exporting("svc", _TraceReporter(output)):
                ended: ExitCode | None = anyio.run(body)
    except SvcError as error:
        output.show_error(error.message, failures.hint_for(error), failures.error_json(error))
        return failures.exit_code_for(error)
    except (KeyboardInterrupt, click.Abort):
        output.show_error("interrupted", None, failures.error_json(SvcError("interrupted", code="interrupted")))
        return ExitCode.INTERRUPTED
    except OSError as error:  # for example a full disk or a closed pipe
        if isinstance(error, BrokenPipeError) or output.next_step is None:
            raise
        problem = SvcError(f"cannot write the answer: {error}", code="not_written")
        output.show_error(problem.message, None, failures.error_json(problem))
        return ExitCode.UNREADABLE
    return ExitCode.DONE if ended is None else ended
