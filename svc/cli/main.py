"""`svc`: the client's command line. What it can do, by what a buyer wants to do."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from svc.cli import doctor
from svc.cli.commands import account, batches, conformance, jobs, known, market
from svc.cli.failures import MEANINGS, Exit
from svc.cli.output import one_line

# Completion in the shell: `svc completion bash` writes what the shell is to read.


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), help="The shell that is to complete.")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> Exit:
    """Write the completion script for a shell.

    \b
      bash   svc completion bash > ~/.local/share/bash-completion/completions/svc
      zsh    svc completion zsh > "${fpath[1]}/_svc"
      fish   svc completion fish > ~/.config/fish/completions/svc.fish
    """
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(script(ctx.find_root().command, {}, "svc", "_SVC_COMPLETE").source())
    return Exit.DONE


_SECTIONS: Final[dict[str, tuple[click.Command, ...]]] = {
    "One job": (
        jobs.run,
        jobs.quote,
        jobs.submit,
        jobs.status,
        jobs.wait,
        jobs.result_,
        jobs.cancel,
        account.jobs,
        account.verify,
        market.receipt,
    ),
    "Many jobs": (batches.batch,),
    "The market": (market.models, market.asks, market.providers, market.escrow),
    "Set-up": (known.keygen, known.address, account.balance, doctor.doctor, known.market, completion),
    "Your own implementation": (conformance.conformance,),
}
_ENVIRONMENT: Final = (
    ("SVC_BASE_URL", "the coordinator (default http://127.0.0.1:8402)"),
    ("SVC_WALLET_KEY", "the wallet's private key, 32 bytes of hex"),
    ("SVC_WALLET_KEY_FILE", "a file that holds it instead, as keygen writes it"),
    ("SVC_CIPHER_KEY", "an X25519 secret that results are sealed to (default: derived from the wallet)"),
    ("SVC_PIN_GATEWAY", "gateways that results are read from, comma-separated; empty disables reads"),
    ("SVC_SETTLEMENT_MARGIN", "seconds that an order outlives its window (default 3600)"),
    ("SVC_ADDRESSES_FILE", "the market's address book: a coordinator that tells another deployment is refused"),
    ("SVC_KNOWN_MARKETS", "the file of known markets (default ~/.config/svc/known_markets.json); empty: none is kept"),
    ("SVC_RPC_URL", "nodes of the chain, comma-separated, that what is told is held against; they must agree"),
    ("SVC_MAX_AMOUNT", "the most that an order or a line may come to, in base units (default: one token)"),
    ("SVC_MAX_BATCH_AMOUNT", "the most that a batch may come to in all, in base units (default: ten tokens)"),
    ("SVC_INSECURE_HTTP", "1: take http:// to other machines than this"),
    ("SVC_CONFIG", "the file of profiles (default: svc/config.toml in your configuration folder)"),
    ("SVC_PROFILE", "the profile to use (default: `default`, where there is one)"),
)


class _Sections(click.Group):
    """A group whose help lists the commands by purpose, then what it reads and how it ends."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(each.name), each.get_short_help_str(limit=90)) for each in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Environment"):
            formatter.write_dl(_ENVIRONMENT)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


@click.group(
    cls=_Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(version("sealed-job-coordinator"), message="%(version)s")
def svc() -> None:
    """Buy sealed compute jobs: a job for one provider is read by that one alone, its result by you alone.

    An open job, which any provider may claim, can be read by whoever runs the coordinator as well.

    An order is signed and paid by your wallet; the coordinator relays it to the chain, a provider claims and runs it,
    and the payment is collected when it is claimed. What goes unused comes back.

    \b
      svc keygen                                        a wallet
      svc models                                        what is for sale
      svc run demo/text-small "Why is the sky blue?"    one job, from order to answer
      svc submit MODEL --file prompt.txt && svc wait JOB

    Results go to standard output, all else to standard error. On a terminal there are tables; in a pipe one line per
    row, with tabs; with --json JSON.
    """


for _commands in _SECTIONS.values():
    for _command in _commands:
        svc.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # What was paid for is told whatever the locale can write: as UTF-8 to programs, as it can be to a terminal.
        to_terminal = sys.stdout.isatty()
        sys.stdout.reconfigure(encoding=None if to_terminal else "utf-8", errors="backslashreplace")
    try:
        ended: Any = svc.main(arguments, prog_name="svc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as wrong:
        wrong.show()
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        print("svc: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read has read enough. What is still buffered has nowhere to go, and Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except OSError as error:  # of a file or an output that takes no more
        print(f"svc: {one_line(str(error))}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.UNREADABLE
    return int(ended or Exit.DONE)
