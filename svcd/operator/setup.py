"""`svcd init`: write a configuration and its keys, without overwriting any file."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from common.daemon.process import Fatal
from common.keystores import encrypt_keystore, new_private_key
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svc.wire.connections import open_client
from svcd.base.keys import BOX_KEY_FILE, PASSWORD_FILE, WALLET_FILE, create_box_key, store_secret
from svcd.base.kinds import http_url
from svcd.operator.config_text import (
    SYSTEM_FOLDER,
    OfferedModel,
    Rates,
    SetupOptions,
    configuration_text,
    toml_string,
)
from svcd.operator.discovery import ModelServer, find_local_servers, find_servers
from svcd.operator.market_lookup import ReportedMarket, match_models, read_market

PrintLine = Callable[[str], None]
Prompt = Callable[[str, str | None, str], str]
"""Function that prompts for an answer. Arguments: the question, the proposed answer, the equivalent flag."""

_NEW_KEY, _NEW_KEYSTORE = "new", "keystore"
_MAX_LISTED_NAMES = 20
_MARKET_TIMEOUT_S = 15.0
T = TypeVar("T")


def prompt_at_terminal(question: str, proposed: str | None, flag: str) -> str:
    """Prompt at the terminal. Without a terminal, return the proposal, or raise `Fatal` if there is no proposal."""
    if not sys.stdin.isatty():
        if proposed is None:
            raise Fatal(f"{flag} must be given: there is no terminal to prompt at")
        return proposed
    while True:
        try:
            answer = input(f"{question}{'' if proposed is None else f' [{proposed}]'}: ").strip() or proposed
        except EOFError:
            raise Fatal(f"the input ended before {flag} was answered; nothing was written") from None
        if answer:
            return answer


@attrs.frozen(slots=True)
class Dialogue:
    """Dialogue of `svcd init`, which repeats a question after an invalid answer."""

    prompt: Prompt
    print_line: PrintLine

    def read_answer(
        self, flag_value: str | None, question: str, proposed: str | None, flag: str, parse: Callable[[str], T]
    ) -> T:
        """Return the flag's value, or prompt until the answer is valid. Raise `Fatal` for an invalid flag."""
        if flag_value is not None:
            return parse(flag_value)
        while True:
            text = self.prompt(question, proposed, flag)
            try:
                return parse(text)
            except Fatal as mistake:
                self.print_line(f"    {mistake}")
                if text == proposed:  # without a terminal, an invalid proposal would repeat forever
                    proposed = None


def set_up(options: SetupOptions, prompt: Prompt, print_line: PrintLine, read_password: Callable[[], str]) -> None:
    """Write the configuration and its keys. `read_password` is called if a keystore is created."""
    if options.config.exists():
        raise Fatal(f"{options.config} already exists: edit it, or name another file with `--config`")
    dialogue = Dialogue(prompt, print_line)
    coordinator, market = dialogue.read_answer(
        options.coordinator, "1/6 address of the coordinator", None, "--coordinator", _read_market_at
    )
    names = ", ".join(market.model_ids) or "none"
    print_line(
        f"    chain {market.address_book.chain_id}, token {market.address_book.token_domain.name}; models: {names}"
    )
    gateway = dialogue.read_answer(
        options.gateway or market.gateway,
        "    address of a gateway for payloads (the coordinator reports none)",
        None,
        "--gateway",
        _parse_address,
    )
    servers = _ask_servers(options, dialogue)
    offered = _ask_slots(options, _ask_models(options, market, servers, dialogue), dialogue)
    rates = _ask_rates(options, market, offered, dialogue)
    wallet = dialogue.read_answer(
        options.wallet,
        "6/6 wallet, a `new` key, a new encrypted `keystore`, or the path of a key that you have",
        _NEW_KEY,
        "--wallet",
        _check_wallet_choice,
    )
    options.credentials.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = _create_keys(options, wallet, read_password, print_line)
    addresses = options.addresses or _write_addresses(options.folder / "addresses.json", market, print_line)
    text = configuration_text(
        options,
        coordinator=coordinator,
        gateway=gateway,
        addresses=addresses.absolute(),
        keys=keys,
        offered=offered,
        rates=rates,
        windows=market.windows_s,
    )
    _write_new_file(options.config, text)
    print_line(f"wrote {options.config}")
    _print_next_steps(options, market, offered, print_line)


def _read_market_at(text: str) -> tuple[str, ReportedMarket]:
    address = _parse_address(text)
    return address, trio.run(_read_market, address)


async def _read_market(url: str) -> ReportedMarket:
    async with open_client(base_url=url, timeout=_MARKET_TIMEOUT_S) as http:
        return await read_market(http)


def _parse_address(text: str) -> str:
    try:
        return http_url.from_text(text).rstrip("/")
    except ValueError:
        raise Fatal(f"{text!r} must be {http_url.expected}") from None


def _ask_servers(options: SetupOptions, dialogue: Dialogue) -> list[ModelServer]:
    found = [] if options.servers else trio.run(find_local_servers)
    for server in found:
        dialogue.print_line(f"    {server}")
    urls = " ".join(server.url for server in found) or None

    def read_servers(text: str) -> list[ModelServer]:
        if text == urls:
            return found
        named = trio.run(find_servers, text.split())
        if not named:
            raise Fatal(f"no list of models at {text}: start the model server, or name another server")
        return named

    return dialogue.read_answer(
        " ".join(options.servers) or None, "2/6 address of the model server", urls, "--server", read_servers
    )


def _ask_models(
    options: SetupOptions, market: ReportedMarket, servers: Sequence[ModelServer], dialogue: Dialogue
) -> list[OfferedModel]:
    if options.models:
        return _parse_models(options.models, market, servers)
    alike = {
        name: each for server in servers for name, each in match_models(market.model_ids, server.served.names).items()
    }
    if not alike and len(market.model_ids) == 1:
        alike = {next(iter(market.model_ids)): servers[0].served.names[0]}
    proposed = " ".join(f"{name}={served}" for name, served in alike.items()) or None
    for server in servers:
        names = server.served.names
        more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
        dialogue.print_line(f"    {server.url} serves {', '.join(names[:_MAX_LISTED_NAMES])}{more}")
    return dialogue.read_answer(
        None,
        "3/6 models to offer, as MARKET=SERVED",
        proposed,
        "--model",
        lambda text: _parse_models(text.replace(",", " ").split(), market, servers),
    )


def _parse_models(texts: Sequence[str], market: ReportedMarket, servers: Sequence[ModelServer]) -> list[OfferedModel]:
    pairs = [each.partition("=")[::2] for each in texts]
    if not pairs:
        raise Fatal(f"no model is named; the market has {', '.join(market.model_ids) or 'none'}")
    offered = []
    for name, given in pairs:
        if name not in market.model_ids:
            raise Fatal(f"the market has no model {name!r}; it has {', '.join(market.model_ids) or 'none'}")
        served = given or match_models([name], [each for s in servers for each in s.served.names]).get(name, name)
        server = next((each for each in servers if each.served.accepts(served)), None)
        if server is None:
            raise Fatal(f"{name}: no server has a model {served!r}; the servers are {'; '.join(map(str, servers))}")
        offered.append(OfferedModel(name, market.model_ids[name], server, served))
    return offered


def _ask_slots(options: SetupOptions, offered: Sequence[OfferedModel], dialogue: Dialogue) -> list[OfferedModel]:
    """Ask for each model's number of slots. The models of one server share the server's capacity."""
    models = []
    for model in offered:
        sharing = sum(other.server.url == model.server.url for other in offered)
        proposed = str(max(1, model.server.proposed_slots // sharing))
        question = f"4/6 jobs of {model.name} to run at a time"
        given = None if options.slots is None else str(options.slots)
        slots = dialogue.read_answer(given, question, proposed, "--slots", _parse_slots)
        models.append(attrs.evolve(model, slots=slots))
    return models


def _parse_slots(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not int(text):
        raise Fatal(f"{text!r}: the number of jobs at a time must be a whole number above 0")
    return int(text)


def _ask_rates(
    options: SetupOptions, market: ReportedMarket, offered: Sequence[OfferedModel], dialogue: Dialogue
) -> Rates:
    """Propose rates for each model and window. Return these rates, scaled by the operator's percentage.

    The proposal is the lowest ask for the model in the window, otherwise in any window, otherwise a default.
    """
    unit = 10**market.address_book.payment_token_decimals
    proposed: Rates = {}
    for model in offered:
        elsewhere = [floor for (each, _), floor in market.price_floors.items() if each == model.model_id]
        for window in market.windows_s:
            floor = market.price_floors.get((model.model_id, window)) or min(elsewhere, default=None)
            source = "lowest ask" if floor else "no asks yet"
            rate_in, rate_out = floor or (unit // 10 or 1, unit // 5 or 1)
            proposed[model.name, window] = options.rate_in or rate_in, options.rate_out or rate_out
            shown = " / ".join(f"{rate / unit:g}" for rate in proposed[model.name, window])
            dialogue.print_line(
                f"    {model.name}, window {window} s: "
                f"{shown} {market.address_book.token_domain.name} per million ({source})"
            )
    if options.price_percent is not None:
        percent = options.price_percent
    elif options.rate_in is not None and options.rate_out is not None:
        percent = 100
    else:
        percent = dialogue.read_answer(
            None, "5/6 prices, in percent of these", "100", "--price-percent", _parse_percent
        )
    return {
        pair: (-(-rate_in * percent // 100), max(1, -(-rate_out * percent // 100)))
        for pair, (rate_in, rate_out) in proposed.items()
    }


def _parse_percent(text: str) -> int:
    digits = text.removesuffix("%").strip()
    if not (digits.isascii() and digits.isdecimal()) or not 0 < int(digits) <= 10_000:
        raise Fatal(f"{text!r}: prices must be a percentage from 1 to 10000")
    return int(digits)


def _check_wallet_choice(text: str) -> str:
    if text not in (_NEW_KEY, _NEW_KEYSTORE) and not Path(text).is_file():
        raise Fatal(f"{text} is not a file: the wallet must be `{_NEW_KEY}`, `{_NEW_KEYSTORE}` or the path of a key")
    return text


def _create_keys(
    options: SetupOptions, wallet: str, read_password: Callable[[], str], print_line: PrintLine
) -> list[str]:
    """Create missing keys, and return the lines of the [keys] table."""
    folder = options.credentials
    lines = []
    if wallet in (_NEW_KEY, _NEW_KEYSTORE):
        lines.append(f'wallet = "{WALLET_FILE}"')
        wallet_file = folder / WALLET_FILE
        if wallet == _NEW_KEYSTORE:
            print_line(f"put the keystore's password into {folder / PASSWORD_FILE}, readable only by you (chmod 600)")
            lines.append(f'wallet_password = "{PASSWORD_FILE}"')
        if wallet_file.exists():
            print_line(f"kept the existing {wallet_file}")
        else:
            secret = new_private_key()
            text = hex_of(secret) + "\n" if wallet == _NEW_KEY else encrypt_keystore(secret, read_password())
            store_secret(wallet_file, text)
            print_line(f"wrote {wallet_file}: wallet {hex_of(Wallet(secret).address)}; back it up")
    else:
        lines.append(f"wallet = {toml_string(Path(wallet).absolute())}")
    lines.append(f'box = "{BOX_KEY_FILE}"')
    if (folder / BOX_KEY_FILE).exists():
        print_line(f"kept the existing {folder / BOX_KEY_FILE}")
    else:
        print_line(f"wrote {folder / BOX_KEY_FILE}: box key {hex_of(create_box_key(folder).raw)}")
    return lines


def _write_addresses(path: Path, market: ReportedMarket, print_line: PrintLine) -> Path:
    text = json.dumps(market.address_book.as_json(), indent=2) + "\n"
    if not path.exists():
        _write_new_file(path, text)
        print_line(
            f"wrote {path}, as reported by the coordinator; compare it with the address book that the market publishes"
        )
    return path


def _write_new_file(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _print_next_steps(
    options: SetupOptions, market: ReportedMarket, offered: Sequence[OfferedModel], print_line: PrintLine
) -> None:
    flag = "" if options.folder == SYSTEM_FOLDER else f" --config {options.config}"
    rpc = "" if options.rpc_url else " --rpc-url URL"
    print_line("next:")
    print_line(
        f'  svcd try{flag} {offered[0].name} "hello"    runs one job through the model server, without the chain'
    )
    print_line(
        f"  svcd register{flag}{rpc}    needs a little of the native coin of chain {market.address_book.chain_id}"
    )
    print_line(f"  svcd check{flag}    shows what is right and what is wrong")
    print_line(f"  svcd run{flag}    or systemctl enable --now svcd")
