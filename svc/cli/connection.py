"""Connection of a command to a coordinator: its options, its client, and its failures as exit codes."""

import functools
import os
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import attrs
import click
from anyio import to_thread

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.cli import failures
from svc.cli.failures import Exit
from svc.cli.output import Gauge, Output, one_line
from svc.client import Client
from svc.errors import OrderRefused, OverCeiling, SvcError
from svc.profiles import NAME_VARIABLE, with_profile
from svc.signers import read_wallet

# Where the wallet's key comes from: a named file, the environment, or a file that the environment names.

KEY: str = "SVC_WALLET_KEY"
KEY_FILE: str = "SVC_WALLET_KEY_FILE"


def wallet_of(key_file: Path | None, environment: Mapping[str, str] | None = None) -> Wallet | None:
    """The wallet, or None when no key is given anywhere. Raises Refused; no message ever shows a key.

    A file that is named on the command line wins over the environment. Two keys in the environment are refused: which
    of two accounts pays is nothing to guess.
    """
    known = with_profile(os.environ if environment is None else environment)
    if key_file is not None:
        return _read(key_file)
    key, named = known.get(KEY), known.get(KEY_FILE)
    if key and named:
        raise Refused(f"{KEY} and {KEY_FILE} are both set: keep one", KEY)
    if named:
        return _read(Path(named))
    return _parsed(key) if key else None


def _read(path: Path) -> Wallet:
    try:
        return read_wallet(path)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", KEY_FILE) from None
    except Refused as wrong:
        raise Refused(wrong.message, KEY_FILE) from None


def _parsed(key: str) -> Wallet:
    try:
        return Wallet(bytes.fromhex(key.strip().removeprefix("0x")))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{KEY} does not hold a private key in hex", KEY) from None


Body = Callable[..., Awaitable[Exit | None]]

_WHERE: Final = (
    *("profile", "base_url", "gateways", "key_file", "addresses", "rpc_url"),
    *("escrow_keys", "allow_mock_escrow", "insecure_http"),
)
_NO_KEY: Final = "this needs a wallet: set SVC_WALLET_KEY or SVC_WALLET_KEY_FILE, or name a file with --key-file"


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
    async def client(self, *, wallet: bool = False) -> AsyncIterator[Client]:
        """`wallet`: the command needs one, so that the lack of it is found before anything is asked."""
        try:
            environment = {**os.environ, NAME_VARIABLE: self.profile} if self.profile else os.environ
            key = wallet_of(self.key_file, environment)
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
                environment=environment,
            )
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        async with made as client:
            yield client


def connected(body: Body) -> Callable[..., Exit]:
    """Makes a command's function of an asynchronous one that takes a connection first."""

    @click.option("--profile", metavar="NAME", help="Of the file of profiles.  [env: SVC_PROFILE]")
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


# Asking whoever watches, where an order comes to more than the default ceiling.

T = TypeVar("T")


async def within_ceiling(
    output: Output, gauge: Gauge | None, max_amount: int | None, pay: Callable[[int | None], Awaitable[T]]
) -> T:
    """`pay` with the ceiling that was given; above the default one a terminal is asked, and all else is refused.

    A ceiling that somebody set is never asked about: it was set so that nobody has to look.
    """
    while True:
        try:
            return await pay(max_amount)
        except OverCeiling as over:
            if not over.default or not _somebody_watches(output):
                raise
            question = f"{one_line(over.message.partition('; ')[0])}. Pay it?"
            with nullcontext() if gauge is None else gauge.aside():
                agreed = await to_thread.run_sync(lambda: click.confirm(question, err=True))  # noqa: B023 - awaited here
            if not agreed:
                raise
            max_amount = over.amount


def _somebody_watches(output: Output) -> bool:
    return not output.as_json and sys.stdin.isatty() and sys.stderr.isatty()
