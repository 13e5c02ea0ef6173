"""Connection of a command to a coordinator: its options, its client, and its failures as exit codes."""

import functools
import os
import shlex
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import list2cmdline
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import attrs
import click

from common.refusal import Refused
from svc.cli import failures
from svc.cli.exit_codes import Exit
from svc.cli.output import Output
from svc.errors import NO_WALLET, OrderRefused, SvcError
from svc.profiles import NAME_VARIABLE, with_profile
from svc.wallets import KEY_FILE, PASSWORD_FILE, signer_of

if TYPE_CHECKING:
    from svc.client import Client

Body = Callable[..., Awaitable[Exit | None]]

_WHERE: Final = (
    *("profile", "base_url", "gateways", "key_file", "addresses", "rpc_url"),
    *("escrow_keys", "allow_mock_escrow", "insecure_http"),
)


@attrs.frozen
class Connection:
    """Where the coordinator is, who we are there, and where words go."""

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
        """`wallet`: the command needs one, so that the lack of it is found before anything is asked; None: it uses one
        where there is one."""
        try:
            environment = {**os.environ, NAME_VARIABLE: self.profile} if self.profile else os.environ
            signer = None
            if wallet is not False:
                signer = signer_of(with_profile(environment), self.key_file, ask_password)
            if wallet and signer is None:
                raise Refused(NO_WALLET, KEY_FILE)
            from svc.client import Client  # noqa: PLC0415

            made = Client(
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
        async with made as client:
            yield client

    def again(self, *words: str) -> str:
        """A command line that meets the same coordinator as the same wallet: with the options that this one had."""
        named = (
            ("--profile", self.profile),
            ("--coordinator", self.base_url),
            ("--gateway", self.gateways),
            ("--key-file", self.key_file),
            ("--addresses", self.addresses),
            ("--rpc-url", self.rpc_url),
            ("--insecure-http", "" if self.insecure_http else None),
        )
        options = [word for flag, value in named if value is not None for word in (flag, str(value)) if word]
        # As the shell that it is pasted into has it.
        join = list2cmdline if sys.platform == "win32" else shlex.join
        return join(["svc", *words, *options])


def ask_password(path: Path) -> str:
    """Of a keystore, from whoever sits at the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        message = f"{path} is encrypted, and nobody is there to ask: set {PASSWORD_FILE} to a file with its password"
        raise Refused(message, PASSWORD_FILE)
    password: str = click.prompt(f"Password of {path}", hide_input=True, err=True)
    return password


def connected(body: Body) -> Callable[..., Exit]:
    """Makes a command's function of an asynchronous one that takes a connection first."""

    @click.option("--profile", metavar="NAME", help="Of the file of profiles.  [env: SVC_PROFILE]")
    @click.option("--coordinator", "base_url", metavar="URL", help="The coordinator.  [env: SVC_BASE_URL]")
    @click.option("--gateway", "gateways", metavar="URLS", help="Where results are read.  [env: SVC_PIN_GATEWAY]")
    @click.option(
        "--key-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The wallet's key, in hex or as an encrypted keystore.  [env: SVC_WALLET_KEY_FILE, SVC_KEYSTORE]",
    )
    @click.option(
        "--addresses",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The market's address book: refuse any other deployment.  [env: SVC_ADDRESSES_FILE]",
    )
    @click.option(
        "--rpc-url", metavar="URLS", help="Nodes of the chain to hold it against; they must agree.  [env: SVC_RPC_URL]"
    )
    @click.option("--insecure-http", is_flag=True, help="Take http:// to other machines.  [env: SVC_INSECURE_HTTP]")
    @click.option("--escrow-key", "escrow_keys", metavar="HEX", multiple=True, help="Seal to no other escrow.")
    @click.option("--allow-mock-escrow", is_flag=True, help="Seal to a development escrow, which anybody may read.")
    @click.option("--json", "as_json", is_flag=True, help="JSON on standard output; failures as JSON too.")
    @click.option("--quiet", "-q", is_flag=True, help="No remarks and no progress.")
    @functools.wraps(body)
    def command(*, as_json: bool, quiet: bool, **given: Any) -> Exit:
        output = Output(as_json=as_json, quiet=quiet)
        where = {name: given.pop(name) for name in _WHERE}
        return _run(output, functools.partial(body, Connection(output=output, **where), **given))

    return command


def _run(output: Output, body: Callable[[], Awaitable[Any]]) -> Exit:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: output.warn(str(message))
            ended: Exit | None = anyio.run(body)
    except SvcError as error:
        output.fail(error.message, failures.hint_of(error), failures.in_json(error))
        return failures.exit_of(error)
    except (KeyboardInterrupt, click.Abort):
        output.fail("interrupted", None, failures.in_json(SvcError("interrupted", code="interrupted")))
        return Exit.INTERRUPTED
    except OSError as error:  # of a file or an output that takes no more
        if isinstance(error, BrokenPipeError) or output.next is None:
            raise
        failed = SvcError(f"the answer cannot be written: {error}", code="not_written")
        output.fail(failed.message, None, failures.in_json(failed))
        return Exit.UNREADABLE
    return Exit.DONE if ended is None else ended


T = TypeVar("T")
