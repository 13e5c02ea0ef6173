"""What every command that talks to a coordinator takes, opens, and turns its failures into."""

import functools
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import click

from common.refusal import Refused
from svc.cli import failures
from svc.cli.exits import Exit
from svc.cli.output import Output
from svc.cli.wallet import KEY, wallet_of
from svc.client import Client
from svc.errors import OrderRefused, SvcError

Body = Callable[..., Awaitable[Exit | None]]

_WHERE: Final = (
    *("base_url", "gateways", "key_file", "addresses", "rpc_url"),
    *("escrow_keys", "allow_mock_escrow", "insecure_http"),
)
_NO_KEY: Final = "this needs a wallet: set SVC_WALLET_KEY or SVC_WALLET_KEY_FILE, or name a file with --key-file"


@attrs.frozen
class Connection:
    """Where the coordinator is, who we are there, and where words go."""

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
    async def client(self, *, wallet: bool = False) -> AsyncIterator[Client]:
        """`wallet`: the command needs one, so that the lack of it is found before anything is asked."""
        try:
            key = wallet_of(self.key_file)
            if wallet and key is None:
                raise Refused(_NO_KEY, KEY)
            made = Client(
                self.base_url,
                gateways=self.gateways,
                wallet_key=key,
                addresses=self.addresses,
                rpc_url=self.rpc_url,
                on_first_use=self.output.warn,
                escrow_keys=self.escrow_keys,
                allow_mock_escrow=self.allow_mock_escrow,
                insecure_http=self.insecure_http or None,
            )
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        async with made as client:
            yield client


def connected(body: Body) -> Callable[..., Exit]:
    """Makes a command's function of an asynchronous one that takes a connection first."""

    @click.option("--coordinator", "base_url", metavar="URL", help="The coordinator.  [env: SVC_BASE_URL]")
    @click.option("--gateway", "gateways", metavar="URLS", help="Where results are read.  [env: SVC_PIN_GATEWAY]")
    @click.option(
        "--key-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The wallet's key.  [env: SVC_WALLET_KEY_FILE, or SVC_WALLET_KEY for the key itself]",
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
    return Exit.DONE if ended is None else ended
