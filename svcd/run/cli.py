"""`svcd`: the provider's command line."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from common.command_line import CONTEXT_SETTINGS, Program, completion_command, discard_output
from common.daemon.process import RELEASE, Fatal, leaf_exceptions
from common.daemon.secrets import hide_memory

DEFAULT_CONFIG: Final = Path("/etc/svcd/svcd.toml")
_INTERRUPTED_STATUS: Final = 130  # the shells' status for SIGINT: 128 plus the signal's number
_ENVIRONMENT: Final = (
    (
        "CREDENTIALS_DIRECTORY",
        "folder of the keys, set by systemd (default: `credentials` in the folder of the configuration)",
    ),
    ("HTTP_PROXY, HTTPS_PROXY, NO_PROXY", "proxies for the coordinator, gateways and nodes, never for backends"),
)
_EXIT_CODES: Final = {
    0: "done",
    1: "failed, or a check is WRONG",
    2: "wrong command line",
    3: "register: a step is still missing",
    _INTERRUPTED_STATUS: "interrupted",
}
_DEFAULT_ADMIN_WAIT_S: Final = 86_400.0
_FILE_PATH: Final = click.Path(path_type=Path, dir_okay=False)
_POSITIVE_INT: Final = click.IntRange(min=1)
_CONFIG_OPTION: Final = click.option("--config", type=_FILE_PATH, default=DEFAULT_CONFIG, help="Configuration file.")
_JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="Write a list of rows as JSON.")


def main() -> None:
    """Run the command and exit with its status."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    hide_memory()  # before svcd reads a key
    status = 1
    try:
        status = svcd.main(arguments, prog_name="svcd", standalone_mode=False) or 0
        sys.stdout.flush()
        return status
    except* click.ClickException as group:
        for wrong in leaf_exceptions(group):
            if isinstance(wrong, click.ClickException):
                wrong.show()
        status = 2
    except* FileExistsError as group:
        for taken in leaf_exceptions(group):
            print(f"svcd: {getattr(taken, 'filename', taken)} already exists; choose another folder", file=sys.stderr)
    except* (KeyboardInterrupt, click.Abort):
        status = _INTERRUPTED_STATUS
    except* BrokenPipeError:  # the reader closed the pipe
        discard_output()
    except* (Fatal, OSError) as group:
        for error in leaf_exceptions(group):
            print(f"svcd: {error}", file=sys.stderr)
    return status


@click.group(cls=Program, context_settings=CONTEXT_SETTINGS, environment=_ENVIRONMENT, exit_codes=_EXIT_CODES)
@click.version_option(RELEASE, message="%(version)s")
def svcd() -> None:
    """Provide compute to the market of sealed jobs.

    \b
      svcd init                   write a configuration and keys
      svcd try MODEL "hello"      run one job through the model server
      svcd register               register with the market
      svcd check                  check everything that a run needs
      svcd run
    """


def _call_command(name: str, *arguments: Any, **options: Any) -> int:
    """Call a function of `svcd.run.commands`. That module is imported only now, because its import is slow."""
    status: int = getattr(import_module("svcd.run.commands"), name)(*arguments, **options)
    return status


@svcd.command()
@_CONFIG_OPTION
def run(config: Path) -> int:
    """Claim, run and settle jobs until SIGTERM."""
    return _call_command("serve", config)


@svcd.command()
@_CONFIG_OPTION
@_JSON_OPTION
def check(config: Path, as_json: bool) -> int:
    """Check everything that `svcd run` needs."""
    return _call_command("check", config, as_json)


@svcd.command()
@_CONFIG_OPTION
@_JSON_OPTION
def status(config: Path, as_json: bool) -> int:
    """Show the state of the running daemon and its journal. Needs no keys."""
    return _call_command("status", config, as_json)


@svcd.command()
@_CONFIG_OPTION
def identity(config: Path) -> int:
    """Publish the box key and its evidence."""
    return _call_command("identity", config)


@svcd.command()
@click.option("--config", type=_FILE_PATH, default=DEFAULT_CONFIG, help="Configuration file to write.")
@click.option("--coordinator", metavar="URL", help="The market's coordinator.")
@click.option("--server", "servers", multiple=True, metavar="URL", help="A model server (repeatable).")
@click.option("--model", "models", multiple=True, metavar="MARKET[=SERVED]", help="A model to offer (repeatable).")
@click.option("--price-percent", type=click.IntRange(1, 10_000), metavar="N", help="Percentage of the proposed prices.")
@click.option("--rate-in", type=_POSITIVE_INT, metavar="N", help="Price of 10^6 input units, in base units.")
@click.option("--rate-out", type=_POSITIVE_INT, metavar="N", help="Price of 10^6 output units, in base units.")
@click.option("--wallet", metavar="new|keystore|FILE", help="A new key, a new encrypted key, or an existing key file.")
@click.option("--password-file", type=_FILE_PATH, help="Password of a new keystore (default: ask).")
@click.option("--api", type=click.Choice(("chat", "responses", "embeddings", "images")), help="The servers' route.")
@click.option("--slots", type=_POSITIVE_INT, metavar="N", help="Jobs at a time, for each model.")
@click.option("--gateway", metavar="URL", help="Gateway that serves payloads (default: the coordinator's).")
@click.option("--addresses", type=_FILE_PATH, help="The market's published address book.")
@click.option("--rpc-url", metavar="URL", help="A node of the chain, to verify claims.")
@click.option("--state-directory", type=click.Path(path_type=Path, file_okay=False), help="Folder of the journal.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Port of /metrics and /healthz (default: 9403).")
def init(password_file: Path | None, **options: Any) -> int:
    """Write a configuration and keys. Prompts for missing options, and overwrites nothing."""
    return _call_command("init", password_file, **options)


@svcd.command()
@_CONFIG_OPTION
@click.option("--rpc-url", metavar="URL", help="A node of the chain (default: rpc_url of the configuration).")
@click.option("--dry-run", is_flag=True, help="Simulate the registration and show its cost. Send nothing.")
@click.option("--yes", is_flag=True, help="Send without asking.")
@click.option(
    "--wait",
    "wait_seconds",
    is_flag=False,
    flag_value=_DEFAULT_ADMIN_WAIT_S,
    type=click.FloatRange(min=0),
    metavar="[SECONDS]",
    help="Wait for the market's admin (default: a day).",
)
def register(config: Path, rpc_url: str | None, wait_seconds: float | None, *, dry_run: bool, yes: bool) -> int:
    """Register the wallet, and list the admin's remaining steps."""
    return _call_command("register", config, rpc_url, wait_seconds, dry_run=dry_run, yes=yes)


@svcd.command("try")
@_CONFIG_OPTION
@click.option("--units-out", type=_POSITIVE_INT, metavar="N", help="Highest number of output units.")
@click.argument("model", help="The model's name in the market.")
@click.argument("text", default="hello", help="The input.")
def try_(config: Path, units_out: int | None, model: str, text: str) -> int:
    """Run one job through the model server and both seals. Nothing reaches the chain."""
    return _call_command("try_", config, model, text, units_out)


@svcd.command()
@_CONFIG_OPTION
@click.option("--days", type=_POSITIVE_INT, default=7, metavar="N", help="Number of days, including today.")
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV, with amounts in base units.")
@_JSON_OPTION
def earnings(config: Path, days: int, as_csv: bool, as_json: bool) -> int:
    """Show earnings and failed jobs by day and model."""
    return _call_command("earnings", config, days, as_csv=as_csv, as_json=as_json)


@svcd.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder to write to.")
def keygen(out: Path) -> int:
    """Create the wallet's key and the box key."""
    return _call_command("keygen", out)


svcd.add_command(completion_command("svcd"))
