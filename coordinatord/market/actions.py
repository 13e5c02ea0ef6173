"""Commands of `coordinatord market admin`: their arguments, and the action of each command."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import attrs

from common.refusal import Refused
from common.scalars import read_decimal, read_hex
from coordinatord.market.admin import Action, Admin
from coordinatord.market.contracts import read_address
from coordinatord.market.reading import ALLOWLIST_STATUSES
from coordinatord.market.terms import MAX_FEE_BPS, MAX_SLA_S, MAX_TOKEN_GAS, MIN_TOKEN_GAS, read_model, read_schema

_VALUE_BY_ANSWER: Final = {"yes": True, "no": False}
_MAX_ENTRY_BYTES: Final = 1024


@attrs.frozen(slots=True)
class Argument:
    """Positional argument of a command. `read` parses its text, and raises Refused for a wrong value."""

    name: str
    read: Callable[[str], Any]
    about: str


@attrs.frozen(slots=True)
class AdminCommand:
    """Command of `market admin`: its help text, its arguments, and the function that builds the action."""

    about: str
    arguments: tuple[Argument, ...]
    build: Callable[..., Action]

    def build_action(self, admin: Admin, options: SimpleNamespace) -> Action:
        """Return the action of the command. Raise Refused when an argument is wrong."""
        return self.build(admin, *(argument.read(getattr(options, argument.name)) for argument in self.arguments))


def _uint_parser(bits: int, low: int = 0, high: int | None = None, param: str = "the value") -> Callable[[str], int]:
    maximum = 2**bits - 1 if high is None else high

    def read(text: str) -> int:
        number = read_decimal(text, bits, param)
        if not low <= number <= maximum:
            raise Refused(f"{param} must be in {low}..{maximum}", param)
        return number

    return read


def _parse_yes_no(text: str) -> bool:
    if text not in _VALUE_BY_ANSWER:
        raise Refused(f"the argument ALLOWED must be yes or no, not {text}")
    return _VALUE_BY_ANSWER[text]


def _parse_address(text: str) -> str:
    return read_address(text, "the address")


def _parse_key(text: str) -> bytes:
    return read_hex(text, 32, "the key")


def _parse_status(text: str) -> int:
    if text not in ALLOWLIST_STATUSES:
        raise Refused(f"the status must be one of {', '.join(ALLOWLIST_STATUSES)}, not {text}")
    return ALLOWLIST_STATUSES.index(text)


def _parse_entry(text: str) -> str:
    if len(text.encode()) > _MAX_ENTRY_BYTES or re.search(r"[\x00-\x1f\x7f]", text):
        raise Refused(f"the entry must be a text of at most {_MAX_ENTRY_BYTES} bytes, without control characters")
    return text


_PROVIDER_ARGUMENT: Final = Argument("provider", _uint_parser(32, 1, param="the provider's id"), "Id of the provider.")
_MODEL_ARGUMENT: Final = Argument("model", _uint_parser(32, 1, param="the model's id"), "Id of the model.")
_ALLOWED_ARGUMENT: Final = Argument("allowed", _parse_yes_no, "One of yes, no.")
_ACCOUNT_ARGUMENT: Final = Argument("account", _parse_address, "Address of the account.")

_TOKEN_GAS_HELP: Final = f"Gas, {MIN_TOKEN_GAS} to {MAX_TOKEN_GAS}."

ADMIN_COMMANDS: Final[dict[str, AdminCommand]] = {
    "list-provider": AdminCommand(
        "Let a provider claim jobs.", (_PROVIDER_ARGUMENT,), lambda a, p: a.list_provider(p, True)
    ),
    "delist-provider": AdminCommand(
        "Stop a provider from claiming jobs.", (_PROVIDER_ARGUMENT,), lambda a, p: a.list_provider(p, False)
    ),
    "ceiling": AdminCommand(
        "Limit the number of jobs that a provider runs at once.",
        (_PROVIDER_ARGUMENT, Argument("ceiling", _uint_parser(32, param="the ceiling"), "Highest number of jobs.")),
        Admin.set_ceiling,
    ),
    "allow-all-models": AdminCommand(
        "Allow a provider every model, or only allowed models.",
        (_PROVIDER_ARGUMENT, _ALLOWED_ARGUMENT),
        Admin.allow_all_models,
    ),
    "allow-model": AdminCommand(
        "Allow or forbid a provider one model.",
        (_PROVIDER_ARGUMENT, _MODEL_ARGUMENT, _ALLOWED_ARGUMENT),
        Admin.allow_model,
    ),
    "enable-model": AdminCommand(
        "Enable or disable a model that set-model has set.",
        (_MODEL_ARGUMENT, _ALLOWED_ARGUMENT),
        Admin.set_model_enabled,
    ),
    "sla": AdminCommand(
        "Allow or forbid jobs with a window of this length.",
        (
            Argument("seconds", _uint_parser(32, 1, MAX_SLA_S, "the window"), f"Seconds, 1 to {MAX_SLA_S}."),
            _ALLOWED_ARGUMENT,
        ),
        Admin.allow_sla,
    ),
    "fees": AdminCommand(
        "Set the fees of jobs posted from now on.",
        (
            Argument("bps", _uint_parser(16, 0, MAX_FEE_BPS, "the fee in bps"), f"Basis points, 0 to {MAX_FEE_BPS}."),
            Argument("gas_fee", _uint_parser(128, param="the gas fee"), "Amount in the token's smallest unit."),
        ),
        Admin.set_fees,
    ),
    "token-gas": AdminCommand(
        "Set the gas that one call of the token may use.",
        (Argument("gas", _uint_parser(32, MIN_TOKEN_GAS, MAX_TOKEN_GAS, "the gas"), _TOKEN_GAS_HELP),),
        Admin.set_token_gas,
    ),
    "point-price": AdminCommand(
        "Set the treasury income that earns a point of reputation.",
        (Argument("price", _uint_parser(96, param="the price"), "Amount in the token's smallest unit."),),
        Admin.set_point_price,
    ),
    "treasury": AdminCommand("Set the account that gets the fees.", (_ACCOUNT_ARGUMENT,), Admin.set_treasury),
    "grant-relayer": AdminCommand(
        "Let an account relay transactions to all registries.",
        (_ACCOUNT_ARGUMENT,),
        lambda a, r: a.set_relayer(r, True),
    ),
    "revoke-relayer": AdminCommand(
        "Stop an account from relaying.", (_ACCOUNT_ARGUMENT,), lambda a, r: a.set_relayer(r, False)
    ),
    "pause": AdminCommand("Stop posts and claims. Claimed jobs continue.", (), lambda a: a.pause(True)),
    "unpause": AdminCommand("Allow posts and claims again.", (), lambda a: a.pause(False)),
    "allowlist": AdminCommand(
        "Set the status of an escrow key.",
        (
            Argument("key", _parse_key, "Escrow key, 32 bytes in hex."),
            Argument("status", _parse_status, f"One of {', '.join(ALLOWLIST_STATUSES)}."),
            Argument("entry", _parse_entry, "Description of the key; may be empty."),
        ),
        Admin.set_allowlist,
    ),
    "transfer-ownership": AdminCommand(
        "Offer ownership of all registries.", (_ACCOUNT_ARGUMENT,), Admin.transfer_ownership
    ),
    "take-back-ownership": AdminCommand("Take back the offer of ownership.", (), Admin.take_back_offer),
    "accept-ownership": AdminCommand("Accept the offered ownership.", (), Admin.accept_ownership),
}


def set_model_action(admin: Admin, options: SimpleNamespace) -> Action:
    """Return the action of the command `set-model`. Raise Refused when a value is wrong."""
    schema = read_schema(options.params_schema) if options.params_schema is not None else None
    model = read_model(_MODEL_ARGUMENT.read(options.model), options.name, options.owned_by, schema, "the model")
    return admin.set_model(model, not options.disabled)
