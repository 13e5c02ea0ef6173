"""The command line of `coordinatord market`. docs/operators/market.md is its manual."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any

from web3 import Web3
from web3.exceptions import Web3Exception

from common.address_book import AddressBook
from common.checks import check_table, wrong_names
from common.daemon.process import Fatal
from common.refusal import Refused
from common.text_table import terminal_columns
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.signing.keystores import from_key_file, from_keystore, keystore_password, new_keystore
from coordinatord.chain.signing.signers import TransactionSigner, from_command
from coordinatord.market import actions, explorer, status, trial_token, unsigned_calls
from coordinatord.market.admin import Action, Admin
from coordinatord.market.contracts import read_address
from coordinatord.market.deploy import MarketDeployment, deploy, dry_run
from coordinatord.market.fees import GWEI, FeeOptions
from coordinatord.market.journal import DeploymentJournal
from coordinatord.market.node import connect, eth_call
from coordinatord.market.reading import read_market
from coordinatord.market.sending import Sender, SendingStep, SendOptions, refusal
from coordinatord.market.status import conformity, soundness
from coordinatord.market.terms import MarketTerms, read_terms


def main(words: Sequence[str]) -> None:
    """Exit with status 0 when the command succeeded, 1 when it failed or a row is WRONG, 2 for a wrong command line."""
    try:
        run(words)
    except (Fatal, Retryable) as error:
        print(f"coordinatord: {error}", file=sys.stderr)
        sys.exit(1)


def run(words: Sequence[str]) -> None:
    """Raise Fatal or Retryable when the command fails. Exit with status 1 when a row is WRONG."""
    arguments = _parser().parse_args(words)
    if arguments.market_command == "new-key":
        print(new_keystore(arguments.out, keystore_password(arguments.password_file, os.environ)))
        return
    url = arguments.rpc_url or os.environ.get("RPC_URL")
    if not url:
        raise Fatal("--rpc-url, or the variable RPC_URL, must name the chain's JSON-RPC endpoint")
    command = {
        "deploy": _deploy,
        "verify": _verify,
        "status": _status,
        "admin": _admin,
        "explorer": _explorer,
        "deploy-test-token": _deploy_test_token,
    }
    try:
        with connect(url) as node:
            command[arguments.market_command](arguments, node)
    except Refused as wrong:
        raise Fatal(str(wrong)) from None
    except RpcError as error:
        raise Fatal(f"the node answered with an error: {error}") from error
    except Web3Exception as odd:
        raise Fatal(f"the node answered with something else than what was requested: {odd}") from odd


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="coordinatord market", description="Deploy the contracts of a market, verify and administer them."
    )
    commands = parser.add_subparsers(dest="market_command", required=True, metavar="command")
    for name, about, add in (
        ("deploy", "deploy, wire, set, hand over and verify a market; go on where a killed run stood", _deploy_options),
        ("verify", "hold a deployed market against a market file: right or WRONG, fact by fact", _verify_options),
        ("status", "show every fact of a deployed market", _status_options),
        ("explorer", "write what explorers verify the contracts by", _explorer_options),
        ("deploy-test-token", "deploy a payment token for a trial market, and print its address", _test_token_options),
    ):
        command = commands.add_parser(name, help=about, description=about)
        _chain_options(command)
        add(command)
    about = "make a new key, in an encrypted keystore, and print its address"
    key = commands.add_parser("new-key", help=about, description=about)
    key.add_argument("--out", type=Path, required=True, metavar="FILE", help="the keystore")
    _password_option(key)
    about = "change a deployed market, or print the calldata for a multisig that owns it"
    verbs = commands.add_parser("admin", help=about, description=about)
    actions.add_verbs(verbs.add_subparsers(dest="verb", required=True, metavar="action"), _admin_options)
    return parser


def _deploy(arguments: Namespace, node: Web3) -> None:
    terms = _terms(arguments)
    send = _send_options(arguments)
    if arguments.dry_run:
        deployer = _signer(arguments).address if _names_signer(arguments) else arguments.sender
        if deployer is None:
            raise Fatal("--dry-run needs --from, the account that will deploy")
        dry_run(node, deployer, terms, send, _say)
        return
    if arguments.out is None:
        raise Fatal("--out must name the file that the address book is written to")
    deployment = MarketDeployment(node, _signer(arguments), terms, send, _say)
    deploy(deployment, arguments.out, arguments.span, arguments.verification)


def _deploy_test_token(arguments: Namespace, node: Web3) -> None:
    chain_id = node.eth.chain_id
    trial_token.require_trial_chain(chain_id)  # before a password is asked for
    # Not resumed by a journal: a token whose address was lost is deployed again.
    sender = Sender(node, _signer(arguments), chain_id, _send_options(arguments), DeploymentJournal(None, {}), _aside)
    print(trial_token.deploy_test_token(sender, arguments.mints))


def _verify(arguments: Namespace, node: Web3) -> None:
    terms, book = _terms(arguments), _book(arguments)
    market = read_market(node, book, arguments.span, _aside)
    rows = soundness(market, book) + conformity(market, terms)
    print(check_table(rows, terminal_columns()))
    if wrong_names(rows):
        sys.exit(1)


def _status(arguments: Namespace, node: Web3) -> None:
    book = _book(arguments)
    market = read_market(node, book, arguments.span, _aside)
    rows = status.facts(market, book)
    print(status.as_document(market, rows) if arguments.json else status.as_text(market, rows))
    if wrong_names(rows):
        sys.exit(1)


def _explorer(arguments: Namespace, node: Web3) -> None:
    market = read_market(node, _book(arguments), arguments.span, _aside)
    print("\n".join(map(str, explorer.write_folder(arguments.out, node, market))))


def _admin(arguments: Namespace, node: Web3) -> None:
    book = _book(arguments)
    if node.eth.chain_id != book.chain_id:
        raise Fatal(f"chainId: the address book is for chain {book.chain_id}, the RPC endpoint serves another")
    action = actions.take(Admin(node, book, arguments.span), arguments)
    if not action.calls:
        raise Fatal(f"nothing to do: {action.already}")
    _try_out(node, action)
    if arguments.calldata:
        calls = action.calls
        print(unsigned_calls.as_document(calls, book.chain_id) if arguments.json else unsigned_calls.as_text(calls))
        return
    if arguments.json:
        raise Fatal("--json goes with --calldata")
    signer = _signer(arguments)
    if signer.address != action.by:
        raise Fatal(f"{signer.address} may not do this, {action.by} may: use its key, or --calldata for a multisig")
    steps = [SendingStep(call.words, n, None, partial(_as_it_is, call)) for n, call in enumerate(action.calls)]
    Sender(node, signer, book.chain_id, _send_options(arguments), DeploymentJournal(None, {}), _say).run(steps)
    print("done")


def _try_out(node: Web3, action: Action) -> None:
    """Raise Fatal when a contract would revert one of the calls now. The calls are independent of each other."""
    for call in action.calls:
        try:
            eth_call(node, str(call.to), call.data, action.by)
        except RpcError as error:
            raise Fatal(f"{call.words}: {refusal(error, action.by)}") from error


def _as_it_is(call: Any, _: Mapping[str, str]) -> Any:
    return call


def _chain_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rpc-url", metavar="URL", help="JSON-RPC endpoint; default: the variable RPC_URL")
    parser.add_argument(
        "--log-span", dest="span", type=_positive, default=5000, metavar="BLOCKS", help="widest range per log query"
    )


def _book_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--addresses", type=Path, metavar="FILE", help="the address book; default: the variable ADDRESSES_FILE"
    )


def _terms_options(parser: ArgumentParser) -> None:
    parser.add_argument("--terms", type=Path, metavar="FILE", help="the market file, TOML or JSON; flags override it")
    for flag, about in (
        ("--token", "the payment token"),
        ("--token-name", "its EIP-712 name, where it does not tell it"),
        ("--token-version", "its EIP-712 version, where it does not tell it"),
        ("--owner", "who owns the registries in the end, such as a Safe"),
        ("--treasury", "where fees go"),
    ):
        parser.add_argument(flag, help=about)
    for flag, about in (
        ("--chain-id", "the chain it must be"),
        ("--decimals", "the decimals that the token must have"),
        ("--fee-bps", "the treasury's part of a job's cost"),
        ("--gas-fee", "what each job pays on top, in the token's smallest unit"),
        ("--max-gas-fee", "most that it can ever be; fixed for good"),
        ("--point-price", "what the treasury must get for a provider to gain a point of reputation"),
        ("--token-gas", "what one call of the token may use"),
    ):
        parser.add_argument(flag, help=about)
    parser.add_argument("--sla", dest="slas", action="append", type=int, metavar="SECONDS", help="a window; repeated")
    parser.add_argument("--relayer", dest="relayers", action="append", metavar="ADDRESS", help="repeated")
    parser.add_argument("--model", dest="models", action="append", type=_model, metavar="ID=NAME", help="repeated")


def _signer_options(parser: ArgumentParser) -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--keystore", type=Path, metavar="FILE", help="an encrypted keystore")
    one.add_argument("--key-file", type=Path, metavar="FILE", help="a key in hex, readable by its owner alone")
    one.add_argument("--signer", metavar="COMMAND", help="a program that signs; needs --from")
    _password_option(parser)
    parser.add_argument("--from", dest="sender", type=_address, metavar="ADDRESS", help="the account that signs")
    parser.add_argument("--max-fee", type=_gwei, metavar="GWEI", help="most that a unit of gas may cost")
    parser.add_argument("--tip", type=_gwei, metavar="GWEI", help="priority fee; default: as the node proposes")
    parser.add_argument("--confirmations", type=_positive, default=3, metavar="BLOCKS", help="depth to wait for")
    parser.add_argument("--timeout", type=_positive, default=900, metavar="SECONDS", help="longest wait for a stage")
    parser.add_argument("--poll", type=_seconds, default=2.0, metavar="SECONDS", help="between looks at the chain")


def _password_option(parser: ArgumentParser) -> None:
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="the keystore's password; else asked for")


def _deploy_options(parser: ArgumentParser) -> None:
    _terms_options(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the address book goes; its journal beside it")
    parser.add_argument("--verification", type=Path, metavar="FOLDER", help="write what explorers ask for as well")
    parser.add_argument("--dry-run", action="store_true", help="check, plan and estimate; send nothing")
    parser.add_argument("--replace", action="store_true", help="sign what waits again, for a higher fee")
    _signer_options(parser)


def _test_token_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--mint",
        dest="mints",
        action="append",
        default=[],
        type=_mint,
        metavar="ADDRESS=TOKENS",
        help="whole tokens for this account; repeated",
    )
    _signer_options(parser)


def _verify_options(parser: ArgumentParser) -> None:
    _book_option(parser)
    _terms_options(parser)


def _status_options(parser: ArgumentParser) -> None:
    _book_option(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def _explorer_options(parser: ArgumentParser) -> None:
    _book_option(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files go")


def _admin_options(parser: ArgumentParser) -> None:
    _chain_options(parser)
    _book_option(parser)
    parser.add_argument("--calldata", action="store_true", help="print the calls for a multisig; send nothing")
    parser.add_argument("--json", action="store_true", help="with --calldata: a file that Safe's builder imports")
    _signer_options(parser)


def _terms(arguments: Namespace) -> MarketTerms:
    names = (
        *("token", "token_name", "token_version", "owner", "treasury", "chain_id", "decimals", "fee_bps", "gas_fee"),
        *("max_gas_fee", "point_price", "token_gas", "slas", "relayers", "models"),
    )
    return read_terms(arguments.terms, {name: getattr(arguments, name) for name in names})


def _book(arguments: Namespace) -> AddressBook:
    path = arguments.addresses or os.environ.get("ADDRESSES_FILE")
    if not path:
        raise Fatal("--addresses, or the variable ADDRESSES_FILE, must name the address book")
    try:
        return AddressBook.parse(Path(path).read_bytes())
    except OSError as missing:
        raise Fatal(f"--addresses {path}: {missing.strerror}") from None
    except Refused as wrong:
        raise Fatal(f"--addresses {path}: {wrong}") from None


def _names_signer(arguments: Namespace) -> bool:
    return any(one is not None for one in (arguments.keystore, arguments.key_file, arguments.signer))


def _signer(arguments: Namespace) -> TransactionSigner:
    signer: TransactionSigner
    if arguments.signer is not None:
        if arguments.sender is None:
            raise Fatal("--signer needs --from, the account that it signs as")
        return from_command(arguments.signer, arguments.sender)
    if arguments.key_file is not None:
        signer = from_key_file(arguments.key_file)
    elif arguments.keystore is not None:
        signer = from_keystore(arguments.keystore, partial(keystore_password, arguments.password_file, os.environ))
    else:
        raise Fatal("one of --keystore, --key-file and --signer must name the key that signs")
    if arguments.sender not in (None, signer.address):
        raise Fatal(f"--from is {arguments.sender}, and the key is of {signer.address}")
    return signer


def _send_options(arguments: Namespace) -> SendOptions:
    return SendOptions(
        fees=FeeOptions(arguments.max_fee, arguments.tip),
        confirmations=arguments.confirmations,
        timeout_seconds=arguments.timeout,
        poll_seconds=arguments.poll,
        replace=getattr(arguments, "replace", False),
    )


def _model(text: str) -> dict[str, object]:
    number, sign, name = text.partition("=")
    if not sign or not number.isdecimal():
        raise ArgumentTypeError(f"must be ID=NAME, not {text}")
    return {"id": int(number), "name": name}


def _mint(text: str) -> trial_token.Mint:
    address, sign, tokens = text.partition("=")
    if not sign or not (tokens.isascii() and tokens.isdecimal()) or not 0 < int(tokens) < 10**30:
        raise ArgumentTypeError(f"must be ADDRESS=TOKENS with a whole number of tokens, not {text}")
    return trial_token.Mint(_address(address), int(tokens) * 10**trial_token.DECIMALS)


def _address(text: str) -> str:
    try:
        return read_address(text, "the address")
    except Refused as wrong:
        raise ArgumentTypeError(str(wrong)) from None


def _gwei(text: str) -> int:
    try:
        wei = Decimal(text) * GWEI
    except InvalidOperation:
        wei = Decimal(-1)
    if not 0 <= wei < 2**96 or wei != int(wei):
        raise ArgumentTypeError(f"must be an amount of gwei, such as 1.5; not {text}")
    return int(wei)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError(f"must be an integer in 1..1000000, not {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.01 <= seconds <= 60:
        raise ArgumentTypeError(f"must be in 0.01..60, not {text}")
    return seconds


def _say(line: str) -> None:
    print(line, flush=True)


def _aside(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
