"""Command line of `coordinatord market`. docs/operators/market.md is its manual."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final

import click
from web3 import Web3
from web3.exceptions import Web3Exception

from common.address_book import AddressBook
from common.checks import check_json, check_table, wrong_names
from common.command_line import CONTEXT_SETTINGS, Program
from common.daemon.process import Fatal
from common.refusal import Refused
from common.text_table import terminal_columns
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.signing.keystores import (
    PASSWORD_VARIABLE,
    create_keystore,
    load_key_file,
    load_keystore,
    read_keystore_password,
)
from coordinatord.chain.signing.signers import TransactionSigner, parse_signing_program
from coordinatord.market import actions, explorer, status, trial_token, unsigned_calls
from coordinatord.market.admin import Action, Admin
from coordinatord.market.contracts import read_address
from coordinatord.market.deploy import MarketDeployment, deploy, dry_run
from coordinatord.market.fees import GWEI, FeeOptions
from coordinatord.market.journal import DeploymentJournal
from coordinatord.market.node import connect, eth_call
from coordinatord.market.reading import read_market
from coordinatord.market.sending import Sender, SendingStep, SendOptions, explain_refusal
from coordinatord.market.status import check_integrity, check_terms
from coordinatord.market.terms import MarketTerms, read_terms

Options = SimpleNamespace
"""Values of a command's options."""

Decorator = Callable[[Any], Any]

_SIGNERS: Final = ("keystore", "key_file", "signer")
_FILE_TYPE: Final = click.Path(path_type=Path, dir_okay=False)
_FOLDER_TYPE: Final = click.Path(path_type=Path, file_okay=False)


@click.group(
    "market",
    cls=Program,
    context_settings=CONTEXT_SETTINGS,
    environment=(
        ("RPC_URL", "the chain's JSON-RPC endpoint"),
        ("ADDRESSES_FILE", "the market's address book"),
        (PASSWORD_VARIABLE, "password of --keystore"),
    ),
    exit_codes={0: "done", 1: "failed, or a row is WRONG", 2: "wrong command line"},
)
def market() -> None:
    """Deploy, verify and administer a market's contracts. See docs/operators/market.md."""


def _build_command(name: str, about: str, body: Callable[[Options, Web3], None], *options: Decorator) -> click.Command:
    """Return a command that runs `body` with a connection to the node."""

    def command(**given: Any) -> None:
        _run(body, Options(**given))

    return _apply_options(options, click.command(name, help=about), command)


def _apply_options(options: Sequence[Decorator], make: Callable[[Any], click.Command], function: Any) -> click.Command:
    for option in reversed(options):
        function = option(function)
    return make(function)


def _run(body: Callable[[Options, Web3], None], options: Options) -> None:
    """Run the command. Turn expected errors into CommandFailed with a message for the user."""
    try:
        _reject_several_signers(options)
        if not options.rpc_url:
            raise Fatal("--rpc-url, or the variable RPC_URL, must name the chain's JSON-RPC endpoint")
        with connect(options.rpc_url) as node:
            body(options, node)
    except Refused as error:
        raise CommandFailed(str(error)) from None
    except RpcError as error:
        raise CommandFailed(f"the node answered with an error: {error}") from error
    except Web3Exception as error:
        raise CommandFailed(f"the node's answer does not match the request: {error}") from error
    except (Fatal, Retryable) as error:
        raise CommandFailed(str(error)) from error


class CommandFailed(click.ClickException):
    """Failure of a command. Ends the program with status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"coordinatord: {self.message}", file, err=True)


@click.command("new-key")
@click.option("--out", type=_FILE_TYPE, required=True, help="Path of the new keystore.")
@click.option("--password-file", type=_FILE_TYPE, help="File with the keystore's password (default: ask).")
def _new_key(out: Path, password_file: Path | None) -> None:
    """Create a key in an encrypted keystore. Shows its address."""
    try:
        click.echo(create_keystore(out, read_keystore_password(password_file, os.environ)))
    except (Fatal, Refused) as error:
        raise CommandFailed(str(error)) from None


def _option_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a click type that parses with `parse`, and reports Refused as a wrong option."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except Refused as wrong:
            raise click.BadParameter(str(wrong)) from None

    return read


def _parse_model(text: str) -> dict[str, object]:
    number, sign, name = text.partition("=")
    if not sign or not number.isdecimal():
        raise Refused(f"must be ID=NAME, not {text}")
    return {"id": int(number), "name": name}


def _parse_mint(text: str) -> trial_token.Mint:
    address, sign, tokens = text.partition("=")
    if not sign or not (tokens.isascii() and tokens.isdecimal()) or not 0 < int(tokens) < 10**30:
        raise Refused(f"must be ADDRESS=TOKENS with a whole number of tokens, not {text}")
    return trial_token.Mint(_parse_address(address), int(tokens) * 10**trial_token.TEST_TOKEN_DECIMALS)


def _parse_address(text: str) -> str:
    return read_address(text, "the address")


def _parse_gwei(text: str) -> int:
    try:
        wei = Decimal(text) * GWEI
    except InvalidOperation:
        wei = Decimal(-1)
    if not 0 <= wei < 2**96 or wei != int(wei):
        raise Refused(f"must be an amount of gwei, such as 1.5; not {text}")
    return int(wei)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.01 <= seconds <= 60:  # a comparison with nan is false, so nan is rejected
        raise Refused(f"must be in 0.01..60, not {text}")
    return seconds


_POSITIVE_INT: Final = click.IntRange(1, 1_000_000)
_CHAIN_OPTIONS: Final = (
    click.option("--rpc-url", envvar="RPC_URL", metavar="URL", help="JSON-RPC endpoint (default: RPC_URL)."),
    click.option(
        "--log-span",
        "log_range_blocks",
        type=_POSITIVE_INT,
        default=5000,
        help="Highest number of blocks in one log query.",
    ),
)
_BOOK_OPTION: Final = click.option(
    "--addresses", envvar="ADDRESSES_FILE", type=_FILE_TYPE, help="Address book (default: ADDRESSES_FILE)."
)
_JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
_TERMS_OPTIONS: Final = (
    click.option("--terms", type=_FILE_TYPE, help="Market file, TOML or JSON. Options override its values."),
    click.option("--token", help="Payment token."),
    click.option("--token-name", help="EIP-712 name of the token (default: as the token reports)."),
    click.option("--token-version", help="EIP-712 version of the token (default: as the token reports)."),
    click.option("--owner", help="Final owner of the registries, such as a Safe."),
    click.option("--treasury", help="Account that gets the fees."),
    click.option("--chain-id", help="Chain that the node must serve."),
    click.option("--decimals", help="Decimals that the token must have."),
    click.option("--fee-bps", help="Treasury's share of a job's cost, in basis points."),
    click.option("--gas-fee", help="Fee of each job, in the token's smallest unit."),
    click.option("--max-gas-fee", help="Highest gas fee that can ever be set."),
    click.option("--point-price", help="Treasury's income for which a provider gains a point of reputation."),
    click.option("--token-gas", help="Gas that one call of the token may use."),
    click.option(
        "--sla",
        "slas",
        multiple=True,
        type=int,
        metavar="SECONDS",
        help="Length of a job window to allow (repeatable).",
    ),
    click.option(
        "--relayer", "relayers", multiple=True, metavar="ADDRESS", help="Account that may relay (repeatable)."
    ),
    click.option(
        "--model",
        "models",
        multiple=True,
        type=_option_type(_parse_model),
        metavar="ID=NAME",
        help="Model to enable (repeatable).",
    ),
)
_SIGNER_OPTIONS: Final = (
    click.option("--keystore", type=_FILE_TYPE, help="Encrypted keystore with the key that signs."),
    click.option("--key-file", type=_FILE_TYPE, help="File with a key in hex, readable only by its owner."),
    click.option("--signer", metavar="COMMAND", help="Program that signs. Needs --from."),
    click.option("--password-file", type=_FILE_TYPE, help="File with the password of --keystore (default: ask)."),
    click.option("--from", "sender", type=_option_type(_parse_address), metavar="ADDRESS", help="Account that signs."),
    click.option("--max-fee", type=_option_type(_parse_gwei), metavar="GWEI", help="Highest fee per unit of gas."),
    click.option(
        "--tip", type=_option_type(_parse_gwei), metavar="GWEI", help="Priority fee (default: as the node proposes)."
    ),
    click.option(
        "--confirmations", type=_POSITIVE_INT, default=3, metavar="BLOCKS", help="Number of blocks to wait for."
    ),
    click.option(
        "--timeout",
        type=_POSITIVE_INT,
        default=900,
        metavar="SECONDS",
        help="Longest wait for the confirmation of a stage.",
    ),
    click.option(
        "--poll", type=_option_type(_parse_seconds), default="2", metavar="SECONDS", help="Time between chain reads."
    ),
)
_ADMIN_OPTIONS: Final = (
    *_CHAIN_OPTIONS,
    _BOOK_OPTION,
    click.option("--calldata", is_flag=True, help="Print the calls for a multisig. Send nothing."),
    click.option("--json", "as_json", is_flag=True, help="With --calldata: write a file for Safe's builder."),
    *_SIGNER_OPTIONS,
)


def _reject_several_signers(options: Options) -> None:
    named = [f"--{name.replace('_', '-')}" for name in _SIGNERS if getattr(options, name, None) is not None]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} cannot be used together: name one signer")


def _deploy(options: Options, node: Web3) -> None:
    terms = _read_terms(options)
    send = _send_options(options)
    if options.dry_run:
        deployer = _open_signer(options).address if _has_signer_option(options) else options.sender
        if deployer is None:
            raise Fatal("--dry-run needs --from, the account that will deploy")
        dry_run(node, deployer, terms, send, _print_line)
        return
    if options.out is None:
        raise Fatal("--out must name the file that the address book is written to")
    deployment = MarketDeployment(node, _open_signer(options), terms, send, _print_line)
    deploy(deployment, options.out, options.log_range_blocks, options.verification)


def _deploy_test_token(options: Options, node: Web3) -> None:
    chain_id = node.eth.chain_id
    trial_token.reject_main_network(chain_id)  # before the signer prompts for a password
    # No journal: if this run is killed, the next one deploys another token.
    sender = Sender(
        node, _open_signer(options), chain_id, _send_options(options), DeploymentJournal(None, {}), _print_to_stderr
    )
    print(trial_token.deploy_test_token(sender, options.mints))


def _verify(options: Options, node: Web3) -> None:
    terms, book = _read_terms(options), _read_book(options)
    market = read_market(node, book, options.log_range_blocks, _print_to_stderr)
    rows = check_integrity(market, book) + check_terms(market, terms)
    click.echo(check_json(rows) if options.as_json else check_table(rows, terminal_columns()))
    if wrong_names(rows):
        sys.exit(1)


def _status(options: Options, node: Web3) -> None:
    book = _read_book(options)
    market = read_market(node, book, options.log_range_blocks, _print_to_stderr)
    rows = status.fact_rows(market, book)
    print(status.as_json(market, rows) if options.as_json else status.as_text(market, rows))
    if wrong_names(rows):
        sys.exit(1)


def _write_explorer_files(options: Options, node: Web3) -> None:
    market = read_market(node, _read_book(options), options.log_range_blocks, _print_to_stderr)
    print("\n".join(map(str, explorer.write_verification_files(options.out, node, market))))


def _run_admin_action(make: Callable[[Admin, Options], Action], options: Options, node: Web3) -> None:
    book = _read_book(options)
    if node.eth.chain_id != book.chain_id:
        raise Fatal(
            f"chainId: the address book is for chain {book.chain_id}, but the RPC endpoint serves another chain"
        )
    action = make(Admin(node, book, options.log_range_blocks), options)
    if not action.calls:
        raise Fatal(f"there is nothing to do: {action.no_calls_reason}")
    _simulate(node, action)
    if options.calldata:
        calls = action.calls
        print(unsigned_calls.as_safe_json(calls, book.chain_id) if options.as_json else unsigned_calls.as_text(calls))
        return
    if options.as_json:
        raise Fatal("--json can only be used with --calldata")
    signer = _open_signer(options)
    if signer.address != action.sender:
        raise Fatal(
            f"{signer.address} may not do this, only {action.sender}: sign with the key of {action.sender}, or use "
            "--calldata for a multisig"
        )
    steps = [SendingStep(call.description, n, None, partial(_return_call, call)) for n, call in enumerate(action.calls)]
    Sender(node, signer, book.chain_id, _send_options(options), DeploymentJournal(None, {}), _print_line).run(steps)
    print("done")


def _simulate(node: Web3, action: Action) -> None:
    """Simulate each call independently. Raise Fatal if a contract would revert one of the calls now."""
    for call in action.calls:
        try:
            eth_call(node, str(call.to), call.data, action.sender)
        except RpcError as error:
            raise Fatal(f"{call.description}: {explain_refusal(error, action.sender)}") from error


def _return_call(call: Any, _: Mapping[str, str]) -> Any:
    return call


def _read_terms(options: Options) -> MarketTerms:
    names = (
        *("token", "token_name", "token_version", "owner", "treasury", "chain_id", "decimals", "fee_bps", "gas_fee"),
        *("max_gas_fee", "point_price", "token_gas", "slas", "relayers", "models"),
    )
    given = {name: getattr(options, name) for name in names}
    overrides = {name: list(value) or None if isinstance(value, tuple) else value for name, value in given.items()}
    return read_terms(options.terms, overrides)


def _read_book(options: Options) -> AddressBook:
    path: Path | None = options.addresses
    if path is None:
        raise Fatal("--addresses, or the variable ADDRESSES_FILE, must name the address book")
    try:
        return AddressBook.parse(path.read_bytes())
    except OSError as missing:
        raise Fatal(f"--addresses {path}: {missing.strerror}") from None
    except Refused as wrong:
        raise Fatal(f"--addresses {path}: {wrong}") from None


def _has_signer_option(options: Options) -> bool:
    return any(getattr(options, name) is not None for name in _SIGNERS)


def _open_signer(options: Options) -> TransactionSigner:
    signer: TransactionSigner
    if options.signer is not None:
        if options.sender is None:
            raise Fatal("--signer needs --from, the account that the program signs for")
        return parse_signing_program(options.signer, options.sender)
    if options.key_file is not None:
        signer = load_key_file(options.key_file)
    elif options.keystore is not None:
        signer = load_keystore(options.keystore, partial(read_keystore_password, options.password_file, os.environ))
    else:
        raise Fatal("one of --keystore, --key-file and --signer must name the key that signs")
    if options.sender not in (None, signer.address):
        raise Fatal(f"--from is {options.sender}, but the key belongs to {signer.address}")
    return signer


def _send_options(options: Options) -> SendOptions:
    return SendOptions(
        fees=FeeOptions(options.max_fee, options.tip),
        confirmations=options.confirmations,
        timeout_seconds=options.timeout,
        poll_seconds=options.poll,
        replace=getattr(options, "replace", False),
    )


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


for _each in (
    _new_key,
    _build_command(
        "deploy",
        "Deploy and configure a market, or resume a killed run.",
        _deploy,
        *_CHAIN_OPTIONS,
        *_TERMS_OPTIONS,
        click.option("--out", type=_FILE_TYPE, help="Address book to write. Its journal goes into the same folder."),
        click.option("--verification", type=_FOLDER_TYPE, help="Also write the files for explorers to this folder."),
        click.option("--dry-run", is_flag=True, help="Check, plan and estimate. Send nothing."),
        click.option("--replace", is_flag=True, help="Sign waiting transactions again, with a higher fee."),
        *_SIGNER_OPTIONS,
    ),
    _build_command(
        "verify",
        "Compare a deployed market with a market file.",
        _verify,
        *_CHAIN_OPTIONS,
        _BOOK_OPTION,
        *_TERMS_OPTIONS,
        _JSON_OPTION,
    ),
    _build_command(
        "status", "Show every fact of a deployed market.", _status, *_CHAIN_OPTIONS, _BOOK_OPTION, _JSON_OPTION
    ),
    _build_command(
        "explorer",
        "Write the files with which explorers verify contracts.",
        _write_explorer_files,
        *_CHAIN_OPTIONS,
        _BOOK_OPTION,
        click.option("--out", type=_FOLDER_TYPE, required=True, help="Folder to write to."),
    ),
    _build_command(
        "deploy-test-token",
        "Deploy a payment token for a trial market. Shows its address.",
        _deploy_test_token,
        *_CHAIN_OPTIONS,
        click.option(
            "--mint",
            "mints",
            multiple=True,
            type=_option_type(_parse_mint),
            metavar="ADDRESS=TOKENS",
            help="Number of whole tokens to mint for an account (repeatable).",
        ),
        *_SIGNER_OPTIONS,
    ),
):
    market.add_command(_each)


@market.group()
def admin() -> None:
    """Change a deployed market. With --calldata, prints the calls for a multisig that owns the market."""


for _name, _admin_command in actions.ADMIN_COMMANDS.items():
    _arguments = [click.argument(each.name, help=each.about) for each in _admin_command.arguments]
    admin.add_command(
        _build_command(
            _name,
            _admin_command.about,
            partial(_run_admin_action, _admin_command.build_action),
            *_arguments,
            *_ADMIN_OPTIONS,
        )
    )
admin.add_command(
    _build_command(
        "set-model",
        "Set a model: its name, owner and parameters.",
        partial(_run_admin_action, actions.set_model_action),
        click.argument("model", help="Id of the model."),
        click.option("--name", required=True, help="Name that clients order by."),
        click.option("--owned-by", default="", help="Owner of the model."),
        click.option("--params-schema", type=_FILE_TYPE, help="JSON Schema of the model's parameters."),
        click.option("--disabled", is_flag=True, help="Accept no orders for this model."),
        *_ADMIN_OPTIONS,
    )
)
