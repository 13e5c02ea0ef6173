"""`svcd`: the provider's command line."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import TypeVar

import trio

from common.daemon.logs import set_up_logging
from common.daemon.process import RELEASE, Fatal, hide_memory
from common.scalars import hex_of
from svcd import app
from svcd.base.keys import BOX_FILE, WALLET_FILE, create_identity
from svcd.configuration.config import DaemonConfig, Whereabouts, read_config, read_whereabouts
from svcd.operator.check import Checked, examine, summary, table
from svcd.operator.earnings import as_csv, as_table, read_earnings
from svcd.operator.register import RegisterOptions, register
from svcd.operator.setup import ask_at_terminal, set_up
from svcd.operator.status import look, publish_identity
from svcd.operator.trial import told_of, try_model
from svcd.operator.written_config import SetupOptions

T = TypeVar("T")

DEFAULT_CONFIG = Path("/etc/svcd/svcd.toml")
_LEFT_TO_DO = 3  # nothing failed, and the provider may not work yet
_INTERRUPTED = 130  # as shells count it: 128 and the signal's number


def main() -> None:
    """The exit status is 0 after an orderly stop, 1 when something is wrong, 2 for a wrong command line."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    hide_memory()  # before a key is read
    options = _parser().parse_args(arguments)
    status = 1
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except* FileExistsError as group:
        for taken in _leaves(group):
            print(f"svcd: {getattr(taken, 'filename', taken)} exists already; choose another", file=sys.stderr)
    except* KeyboardInterrupt:
        status = _INTERRUPTED
    except* BrokenPipeError:  # whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except* (Fatal, OSError) as group:
        for error in _leaves(group):
            print(f"svcd: {error}{_remedy(error, options)}", file=sys.stderr)
    return status


def _remedy(error: BaseException, options: argparse.Namespace) -> str:
    """The next step where the configuration itself is not there."""
    config = getattr(options, "config", None)
    absent = config is not None and str(error) == f"{config}: {os.strerror(errno.ENOENT)}"
    return f"; `svcd init --config {config}` writes one" if absent else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svcd", description="Provide compute to the market of sealed jobs.")
    parser.add_argument("--version", action="version", version=RELEASE)
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    def configured(name: str, about: str, act: Callable[[T], int], read: Callable[[Path], T]) -> None:
        command = commands.add_parser(name, help=about, description=about)
        _config_option(command)
        command.set_defaults(run=lambda options: act(read(options.config)))

    configured("run", "claim, run and settle jobs until SIGTERM", _serve, read_config)
    about_check = "look at everything that a run needs, and print what is right and what is not"
    configured("check", about_check, _check, read_config)
    configured("identity", "publish the box key, and the evidence for it if there is any", _identity, read_config)
    configured("status", "what the running daemon and its journal say; needs no keys", _status, read_whereabouts)
    _add_init(commands)
    _add_register(commands)
    _add_try(commands)
    _add_earnings(commands)
    keygen = commands.add_parser(
        "keygen", help="create the provider's keys", description=f"Create {WALLET_FILE} and {BOX_FILE} in a directory."
    )
    keygen.add_argument("--out", type=Path, default=Path(), help="the directory (default: this one)")
    keygen.set_defaults(run=_keygen)
    return parser


# The commands that take more than a configuration. A key never stands on a command line.


def _add_init(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "write a configuration, and make the keys, by five questions or by flags; overwrite nothing"
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
    init.add_argument("--slots", type=_positive, default=8, metavar="N", help="jobs at a time, per model (default: 8)")
    init.add_argument("--gateway", metavar="URL", help="where payloads are fetched from; default: the coordinator's")
    init.add_argument("--addresses", type=Path, metavar="FILE", help="the market's address book, as it publishes it")
    init.add_argument("--rpc-url", metavar="URL", help="a node of the chain, to hold claims against it")
    init.add_argument("--state-directory", type=Path, metavar="DIRECTORY", help="of the journal")
    init.add_argument("--metrics-port", type=int, metavar="PORT", help="of /metrics and /healthz (default: 9403)")
    init.set_defaults(run=_init)


def _add_register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "register the wallet with the market, and say what its admin has to do next"
    ends = f"Exits with 0 when the provider may work, {_LEFT_TO_DO} when something is left to do, 1 when it failed."
    register = commands.add_parser("register", help=about, description=about, epilog=ends)
    _config_option(register)
    register.add_argument("--rpc-url", metavar="URL", help="a node of the chain; default: rpc_url of the configuration")
    register.add_argument("--dry-run", action="store_true", help="try it and show the cost; send nothing")
    register.add_argument("--yes", action="store_true", help="send it without asking")
    register.add_argument(
        "--wait", type=float, nargs="?", const=86_400.0, metavar="SECONDS", help="until the admin has done its part"
    )
    register.set_defaults(run=_register)


def _add_try(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "run one job through the model server and both seals; nothing on the chain"
    trial = commands.add_parser("try", help=about, description=about)
    _config_option(trial)
    trial.add_argument("--units-out", type=_positive, metavar="N", help="what the order would pay for at most")
    trial.add_argument("model", help="as the market names it")
    trial.add_argument("text", nargs="?", default="hello", help="the input (default: hello)")
    trial.set_defaults(run=_try)


def _add_earnings(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "what was earned, failed and left, by day and model"
    earnings = commands.add_parser("earnings", help=about, description=about)
    _config_option(earnings)
    earnings.add_argument(
        "--days", type=_positive, default=7, metavar="N", help="today and those before it (default: 7)"
    )
    earnings.add_argument("--csv", action="store_true", help="for programs; amounts in base units")
    earnings.set_defaults(run=_earnings)


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


def _init(options: argparse.Namespace) -> int:
    set_up_logging("error")
    flags = {name: value for name, value in vars(options).items() if name not in ("run", "password_file")}
    flags |= {"servers": tuple(options.servers), "models": tuple(options.models)}
    set_up(SetupOptions(**flags), ask_at_terminal, print, lambda: _new_password(options.password_file))
    return 0


def _new_password(file: Path | None) -> str:
    """ASCII alone: the daemon reads it from a file as such, and would not open its wallet by another."""
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise Fatal(f"--password-file {file} cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise Fatal(f"--password-file {file} must hold a password in ASCII characters") from None
    if not sys.stdin.isatty():
        raise Fatal("--password-file must be given: there is no terminal to ask at")
    password = getpass("    password of the new keystore: ")
    if password != getpass("    once more: "):
        raise Fatal("the two passwords differ; no key was made")
    if not password.isascii():
        raise Fatal("the password must be in ASCII characters; no key was made")
    return password


def _register(options: argparse.Namespace) -> int:
    set_up_logging("error")
    config = read_config(options.config)

    def confirmed() -> bool:
        if options.yes or not sys.stdin.isatty():
            return bool(options.yes)
        return input("send it? [y/N]: ").strip().lower() in ("y", "yes")

    chosen = RegisterOptions(options.rpc_url, options.dry_run, confirmed, options.wait)
    return 0 if trio.run(register, config, chosen, print) or options.dry_run else _LEFT_TO_DO


def _try(options: argparse.Namespace) -> int:
    set_up_logging("error")
    tried = trio.run(try_model, read_config(options.config), options.model, options.text, options.units_out)
    print(tried.answer)
    print(told_of(tried))
    return 0


def _earnings(options: argparse.Namespace) -> int:
    set_up_logging("error")
    told = trio.run(read_earnings, read_config(options.config), options.days)
    print(as_csv(told) if options.csv else as_table(told), end="" if options.csv else "\n")
    return 0


def _serve(config: DaemonConfig) -> int:
    set_up_logging(config.log_level)
    trio.run(app.run, config)
    return 0


def _check(config: DaemonConfig) -> int:
    set_up_logging("warning")  # the table says what there is to say
    findings = trio.run(examine, config)
    status = _print(findings)
    print(summary(findings))
    return status


def _identity(config: DaemonConfig) -> int:
    set_up_logging("warning")
    print(trio.run(publish_identity, config))
    return 0


def _status(daemon: Whereabouts) -> int:
    return _print(look(daemon))


def _print(findings: list[Checked]) -> int:
    print(table(findings))
    return 1 if any(finding.right is False for finding in findings) else 0


def _keygen(options: argparse.Namespace) -> int:
    identity = create_identity(options.out)
    print(f"keys written to {options.out.absolute()} (readable by you alone; back them up)")
    print(f"operator {hex_of(identity.operator)}")
    print(f"box key  {hex_of(identity.box_key.raw)}")
    return 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions themselves, out of however many nurseries they came through."""
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
