"""Command line of the client. A command's module is imported when the command is called."""

import errno
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final

import click

from common.command_line import CONTEXT_SETTINGS, Program, discard_output
from common.extras import DISTRIBUTION
from common.settings.reader import settings_of
from svc.cli.exit_codes import EXIT_CODE_HELP, ExitCode
from svc.variables import Variables, variable_name

_COMMAND_SECTIONS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "One job": (
        ("run", "orders:run", "Order one job, wait for it, and show its answer."),
        ("quote", "orders:quote", "Show the price of an order without paying for it."),
        ("submit", "orders:submit", "Order one job and write its id."),
        ("status", "jobs:status", "Show any job."),
        ("why", "checks:why", "Explain why a job is unclaimed, and what would change that."),
        ("wait", "jobs:wait", "Wait until a job has ended."),
        (
            "result",
            "jobs:result_",
            "Show the result of one of your jobs, as svc run does.",
        ),
        ("cancel", "jobs:cancel", "Cancel one of your jobs that no provider has claimed yet."),
        ("jobs", "account:jobs", "List jobs: yours, or those of another owner."),
        (
            "verify",
            "account:verify",
            "Show how each fact of a job is verified, if at all.",
        ),
        ("receipt", "receipt:receipt", "Prove an order, its payment and its delivery to a third party."),
    ),
    "Conversations": (("tab", "tabs:tab", "Chat with a model in one job, which is settled once."),),
    "Many jobs": (
        ("batch", "batches:batch", "Run many jobs from one JSONL file as a batch."),
        (
            "webhooks",
            "webhooks:webhooks",
            "Receive events of your jobs and batches at your URL.",
        ),
    ),
    "OpenAI's API": (
        ("serve", "serve:serve", "Serve OpenAI's API on this machine from sealed jobs."),
        ("spend", "spend:spend", "Show what svc serve spent, by day, model and key."),
    ),
    "The market": (
        ("watch", "watch:watch", "Watch the book, your jobs, models, providers and deployment."),
        ("models", "market:models", "List the models, or show one with its parameters."),
        ("asks", "market:asks", "List the asks of providers."),
        ("providers", "market:providers", "List the providers, or show one."),
        ("escrow", "market:escrow", "Verify and show the key of the escrow."),
    ),
    "Set-up": (
        ("keygen", "wallet_keys:keygen", "Create a wallet key file."),
        (
            "address",
            "wallet_keys:address",
            "Show the address of a key file or of the wallet.",
        ),
        (
            "balance",
            "balance:balance",
            "Show the wallet's balance and what open jobs may spend.",
        ),
        ("config", "config:config", "Show and change the settings in profiles."),
        ("doctor", "doctor", "Check everything that a job needs."),
        (
            "market",
            "known_markets:market",
            "Show, accept and forget a market's remembered keys.",
        ),
        ("completion", "completion", "Write the completion script for a shell."),
    ),
}
_COMMAND_LOCATIONS: Final = {
    name: location for commands in _COMMAND_SECTIONS.values() for name, location, _ in commands
}
_PROFILE_VARIABLES: Final = (
    ("SVC_CONFIG", "the file of profiles (default: svc/config.toml in your configuration folder)"),
    ("SVC_PROFILE", "the profile to use (default: `default`)"),
)


class _SectionedGroup(Program):
    """Group whose help lists the commands in sections, by purpose."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMAND_LOCATIONS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        location = _COMMAND_LOCATIONS.get(cmd_name)
        if location is None:
            return None
        module, _, name = location.rpartition(":")
        module_object = import_module(f"svc.cli.commands.{module}" if module else f"svc.cli.{name}")
        command: click.Command = getattr(module_object, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _COMMAND_SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, description) for name, _, description in commands])


def _variable_help() -> Iterator[tuple[str, str]]:
    for each in settings_of(Variables):
        default = each.default[0] if isinstance(each.default, tuple) and each.default else each.default
        note = f" (default {default})" if default else ""
        yield variable_name(each.name), f"{each.about}{note}"


@click.group(
    cls=_SectionedGroup,
    context_settings=CONTEXT_SETTINGS,
    environment=[*_variable_help(), *_PROFILE_VARIABLES],
    exit_codes=EXIT_CODE_HELP,
)
@click.version_option(package_name=DISTRIBUTION, message="%(version)s")
def svc() -> None:
    """Buy sealed compute jobs.

    Only the named provider can read the order, and only you can read the result. An open order, which any provider may
    claim, can also be read by the coordinator's operator.

    Your wallet signs and pays the order, and the coordinator relays it to the chain. The payment is collected when a
    provider claims the job; the unused part is refunded.

    \b
      svc keygen                                        a wallet
      svc models                                        what is for sale
      svc run demo/text-small "Why is the sky blue?"    one job, from order to answer
      svc submit MODEL --file prompt.txt && svc wait JOB

    Results go to standard output, everything else to standard error. A terminal gets tables, a pipe one line per row
    with tabs, and --json gives JSON.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Do not fail on text that the locale cannot encode. Write UTF-8 to a pipe, and escapes to a terminal.
        to_terminal = sys.stdout.isatty()
        sys.stdout.reconfigure(encoding=None if to_terminal else "utf-8", errors="backslashreplace")
    try:
        result: Any = svc.main(arguments, prog_name="svc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        print("svc: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OSError as error:  # for example a full disk or a closed pipe
        discard_output()
        if isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL):
            return ExitCode.DONE  # the reader has closed the pipe
        from svc.cli.clean_text import clean_line  # noqa: PLC0415 - a slow import for a rare error

        print(f"svc: {clean_line(str(error))}", file=sys.stderr)
        return ExitCode.UNREADABLE
    return int(result or ExitCode.DONE)
