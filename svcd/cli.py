"""`svcd`: the provider's command line."""

import argparse
import os
import sys
from collections.abc import Callable
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
from svcd.operator.status import look, publish_identity

T = TypeVar("T")

DEFAULT_CONFIG = Path("/etc/svcd/svcd.toml")
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
            print(f"svcd: {error}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="svcd", description="Provide compute to the market of sealed jobs.")
    parser.add_argument("--version", action="version", version=RELEASE)
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    def configured(name: str, about: str, act: Callable[[T], int], read: Callable[[Path], T]) -> None:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "--config", type=Path, default=DEFAULT_CONFIG, help=f"the configuration (default: {DEFAULT_CONFIG})"
        )
        command.set_defaults(run=lambda options: act(read(options.config)))

    configured("run", "claim, run and settle jobs until SIGTERM", _serve, read_config)
    about_check = "look at everything that a run needs, and print what is right and what is not"
    configured("check", about_check, _check, read_config)
    configured("identity", "publish the box key, and the evidence for it if there is any", _identity, read_config)
    configured("status", "what the running daemon and its journal say; needs no keys", _status, read_whereabouts)
    keygen = commands.add_parser(
        "keygen", help="create the provider's keys", description=f"Create {WALLET_FILE} and {BOX_FILE} in a directory."
    )
    keygen.add_argument("--out", type=Path, default=Path(), help="the directory (default: this one)")
    keygen.set_defaults(run=_keygen)
    return parser


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
