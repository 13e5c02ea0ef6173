"""`svc`: the command line of the client. A command is imported when it is called."""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final

import click

from common.extras import DISTRIBUTION
from svc.cli.exit_codes import MEANINGS, Exit

_SECTIONS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "One job": (
        ("run", "orders:run", "Order one job, wait for it, and show its answer."),
        ("quote", "orders:quote", "Say what an order would come to, without paying for it."),
        ("submit", "orders:submit", "Order one job and write its id."),
        ("status", "jobs:status", "Show one job, anybody's."),
        ("why", "checks:why", "Say why nobody has claimed a job, and what would change that."),
        ("wait", "jobs:wait", "Wait until a job has ended."),
        (
            "result",
            "jobs:result_",
            "Read and open the result of one of your jobs, and show its answer as svc run does.",
        ),
        ("cancel", "jobs:cancel", "Take back one of your jobs that nobody has claimed yet, and say what became of it."),
        ("jobs", "account:jobs", "List jobs: yours, or those of another owner."),
        (
            "verify",
            "account:verify",
            "Show who vouches for each fact of a job: a signature, the chain, or the coordinator's...",
        ),
        ("receipt", "receipt:receipt", "Prove to a stranger what was ordered, paid and delivered."),
    ),
    "Many jobs": (
        ("batch", "batches:batch", "Many jobs from one JSONL file, followed as one batch."),
        (
            "webhooks",
            "webhooks:webhooks",
            "Have events of your jobs and batches posted to a URL of yours, signed as Standard...",
        ),
    ),
    "Programs that speak OpenAI's API": (
        ("serve", "serve:serve", "Answer as OpenAI's server would, from sealed jobs that your wallet buys."),
        ("spend", "spend:spend", "Show what svc serve spent, by day, model and key, from its ledger."),
    ),
    "The market": (
        ("watch", "watch:watch", "Watch the market: the book, your jobs, models, providers, and the deployment."),
        ("models", "market:models", "List the models, or show one with its parameters."),
        ("asks", "market:asks", "List what providers ask."),
        ("providers", "market:providers", "List the providers, or show one."),
        ("escrow", "market:escrow", "Show the escrow's key once its evidence was verified."),
    ),
    "Set-up": (
        ("keygen", "wallet_keys:keygen", "Create a wallet key file."),
        (
            "address",
            "wallet_keys:address",
            "Show a wallet's address: of a key file or keystore, or of the wallet that the settings...",
        ),
        (
            "balance",
            "balance:balance",
            "Show what the wallet holds of the payment token, and what its jobs may take of it.",
        ),
        ("config", "config:config", "Show and change the settings that are kept in profiles."),
        ("doctor", "doctor", "Say what is wrong and what to do about it, and who vouches for what is right."),
        (
            "market",
            "known_markets:market",
            "Show, accept and forget what is known of a market: it may not change behind your back.",
        ),
        ("completion", "completion", "Write the completion script for a shell."),
    ),
}
_PLACES: Final = {name: place for commands in _SECTIONS.values() for name, place, _ in commands}
_ENVIRONMENT: Final = (
    ("SVC_BASE_URL", "the coordinator (default http://127.0.0.1:8402)"),
    ("SVC_WALLET_KEY", "the wallet's private key, 32 bytes of hex"),
    ("SVC_WALLET_KEY_FILE", "a file that holds it instead, as keygen writes it"),
    ("SVC_KEYSTORE", "an encrypted keystore instead, as keygen --encrypted, geth, clef and cast write it"),
    ("SVC_KEYSTORE_PASSWORD_FILE", "the file of its password (default: a terminal is asked)"),
    ("SVC_SIGNER_COMMAND", "a program that signs instead: EIP-712 JSON on its standard input, 0x-hex as its answer"),
    ("SVC_WALLET_ADDRESS", "the account that it signs for: each signature is checked"),
    ("SVC_SIGNER_DETERMINISTIC", "1: it signs the same way each time, so that results are sealed to a key from it"),
    ("SVC_CIPHER_KEY", "an X25519 secret that results are sealed to (default: derived from the wallet)"),
    ("SVC_PIN_GATEWAY", "gateways that results are read from, comma-separated; empty disables reads"),
    ("SVC_SETTLEMENT_MARGIN", "seconds that an order outlives its window (default 3600)"),
    ("SVC_ADDRESSES_FILE", "the market's address book: a coordinator that tells another deployment is refused"),
    ("SVC_KNOWN_MARKETS", "the file of known markets (default ~/.config/svc/known_markets.json); empty: none is kept"),
    ("SVC_RPC_URL", "nodes of the chain, comma-separated, that what is told is held against; they must agree"),
    ("SVC_MAX_AMOUNT", "the most that an order or a line may come to, in base units (default: one token)"),
    ("SVC_MAX_BATCH_AMOUNT", "the most that a batch may come to in all, in base units (default: ten tokens)"),
    ("SVC_INSECURE_HTTP", "1: take http:// to other machines than this"),
    ("SVC_SERVE_CONFIG", "the settings of svc serve (default: svc/serve.toml in your configuration folder)"),
    ("SVC_SERVE_STATE", "the folder of its ledger, key and files (default: svc/serve there)"),
    ("SVC_CONFIG", "the file of profiles (default: svc/config.toml in your configuration folder)"),
    ("SVC_PROFILE", "the profile to use (default: `default`, where there is one)"),
)


class _Sections(click.Group):
    """A group whose help lists the commands by purpose, then what it reads and how it ends."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _PLACES.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.rpartition(":")
        found = import_module(f"svc.cli.commands.{module}" if module else f"svc.cli.{name}")
        command: click.Command = getattr(found, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, told) for name, _, told in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Environment"):
            formatter.write_dl(_ENVIRONMENT)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


@click.group(
    cls=_Sections,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name=DISTRIBUTION, message="%(version)s")
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
    except OSError as error:  # of a file or an output that takes no more
        # What is still buffered has nowhere to go, and Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL):
            return Exit.DONE  # whoever read has read enough
        from svc.cli.clean_text import one_line  # noqa: PLC0415 - a tenth of a second of imports, for what never happens

        print(f"svc: {one_line(str(error))}", file=sys.stderr)
        return Exit.UNREADABLE
    return int(ended or Exit.DONE)
