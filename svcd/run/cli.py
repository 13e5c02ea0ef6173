"""`svcd`: the provider's command line."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from common.daemon.process import RELEASE, Fatal
from common.daemon.secrets import hide_memory

DEFAULT_CONFIG = Path("/etc/svcd/svcd.toml")
_INTERRUPTED: Final = 130  # as shells count it: 128 and the signal's number
_CONFIGURED: Final = {
    "run": "claim, run and settle jobs until SIGTERM",
    "check": "look at everything that a run needs, and print what is right and what is not",
    "identity": "publish the box key, and the evidence for it if there is any",
    "status": "what the running daemon and its journal say; needs no keys",
}


def main() -> None:
    """Exit with 0 after an orderly stop, 1 for an error, or 2 for a wrong command line."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    hide_memory()  # before a key is read
    options = _parser().parse_args(arguments)
    status = 1
    try:
        from svcd.run.commands import COMMANDS  # noqa: PLC0415

        status = COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except* FileExistsError as group:
        for taken in _leaves(group):
            print(f"svcd: {getattr(taken, 'filename', taken)} exists already; choose another", file=sys.stderr)
    except* KeyboardInterrupt:
        status = _INTERRUPTED
    except* BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except* (Fatal, OSError) as group:
        for error in _leaves(group):
            print(f"svcd: {error}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svcd", description="Provide compute to the market of sealed jobs.")
    parser.add_argument("--version", action="version", version=RELEASE)
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="command")

    for name, about in _CONFIGURED.items():
        command = commands.add_parser(name, help=about, description=about)
        _config_option(command)
        if name in ("check", "status"):
            command.add_argument("--json", action="store_true", help="print the rows as JSON")
    _add_init(commands)
    _add_register(commands)
    _add_try(commands)
    _add_earnings(commands)
    keygen = commands.add_parser(
        "keygen",
        help="create the provider's keys",
        description="Create the wallet's key and the box key in a directory.",
    )
    keygen.add_argument("--out", type=Path, default=Path(), help="the directory (default: this one)")
    return parser


def _add_init(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "write a configuration, and make the keys, by six questions or by flags; overwrite nothing"
    init = commands.add_parser("init", help=about, description=about)
    init.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help=f"what to write (default: {DEFAULT_CONFIG})")
    init.add_argument("--coordinator", metavar="URL", help="the market's coordinator")
    init.add_argument("--server", dest="servers", action="append", default=[], metavar="URL", help="a model server")
    init.add_argument("--model", dest="models", action="append", default=[], metavar="MARKET[=SERVED]", help="repeated")
    init.add_argument("--price-percent", type=_percent, metavar="N", help="of the proposed prices (the book's floors)")
    init.add_argument("--rate-in", type=_positive, metavar="N", help="in base units per million; for every window")
    init.add_argument("--rate-out", type=_positive, metavar="N", help="the same for output")
    init.add_argument(
        "--wallet", metavar="new|keystore|FILE", help="a new key, a new encrypted one, or one that is there"
    )
    init.add_argument("--password-file", type=Path, metavar="FILE", help="of a new keystore; else asked for")
    init.add_argument("--api", choices=("chat", "responses", "embeddings", "images"), help="route of the model server")
    init.add_argument("--slots", type=_positive, metavar="N", help="jobs at a time, per model")
    init.add_argument("--gateway", metavar="URL", help="where payloads are fetched from; default: the coordinator's")
    init.add_argument("--addresses", type=Path, metavar="FILE", help="the market's address book, as it publishes it")
    init.add_argument("--rpc-url", metavar="URL", help="a node of the chain, to hold claims against it")
    init.add_argument("--state-directory", type=Path, metavar="DIRECTORY", help="of the journal")
    init.add_argument("--metrics-port", type=int, metavar="PORT", help="of /metrics and /healthz (default: 9403)")


def _add_register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "register the wallet with the market, and say what its admin has to do next"
    ends = "Exits with 0 when the provider may work, 3 when something is left to do, 1 when it failed."
    register = commands.add_parser("register", help=about, description=about, epilog=ends)
    _config_option(register)
    register.add_argument("--rpc-url", metavar="URL", help="a node of the chain; default: rpc_url of the configuration")
    register.add_argument("--dry-run", action="store_true", help="try it and show the cost; send nothing")
    register.add_argument("--yes", action="store_true", help="send it without asking")
    register.add_argument(
        "--wait", type=float, nargs="?", const=86_400.0, metavar="SECONDS", help="until the admin has done its part"
    )


def _add_try(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "run one job through the model server and both seals; nothing on the chain"
    trial = commands.add_parser("try", help=about, description=about)
    _config_option(trial)
    trial.add_argument("--units-out", type=_positive, metavar="N", help="what the order would pay for at most")
    trial.add_argument("model", help="as the market names it")
    trial.add_argument("text", nargs="?", default="hello", help="the input (default: hello)")


def _add_earnings(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "what was earned, failed and left, by day and model"
    earnings = commands.add_parser("earnings", help=about, description=about)
    _config_option(earnings)
    earnings.add_argument(
        "--days", type=_positive, default=7, metavar="N", help="today and those before it (default: 7)"
    )
    earnings.add_argument("--csv", action="store_true", help="for programs; amounts in base units")


def _config_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, help=f"the configuration (default: {DEFAULT_CONFIG})"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(text)


def _percent(text: str) -> int:
    if _positive(text) > 10_000:
        raise argparse.ArgumentTypeError("must be in 1..10000")
    return int(text)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of nested groups."""
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
