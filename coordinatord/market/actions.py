"""Actions of `coordinatord market admin`: their arguments on the command line, and their calls."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import attrs

from common.refusal import Refused
from common.scalars import read_decimal, read_hex
from coordinatord.market.admin import Action, Admin
from coordinatord.market.contracts import read_address
from coordinatord.market.reading import STATUSES
from coordinatord.market.terms import MAX_FEE_BPS, MAX_SLA_S, MAX_TOKEN_GAS, MIN_TOKEN_GAS, read_model, read_schema

_YES_NO: Final = {"yes": True, "no": False}
_MAX_ENTRY_BYTES: Final = 1024


@attrs.frozen(slots=True)
class Argument:
    """A positional argument. `read` raises Refused."""

    name: str
    read: Callable[[str], Any]
    about: str


@attrs.frozen(slots=True)
class Verb:
    """Action of one word on the command line, with its arguments."""

    about: str
    words: tuple[Argument, ...]
    take: Callable[..., Action]

    def action(self, admin: Admin, options: SimpleNamespace) -> Action:
        """Return the action. Raises Refused when an argument is wrong."""
        return self.take(admin, *(word.read(getattr(options, word.name)) for word in self.words))


def _uint(bits: int, low: int = 0, high: int | None = None, param: str = "the value") -> Callable[[str], int]:
    maximum = 2**bits - 1 if high is None else high

    def read(text: str) -> int:
        number = read_decimal(text, bits, param)
        if not low <= number <= maximum:
            raise Refused(f"{param} must be in {low}..{maximum}", param)
        return number

    return read


def _yes_no(text: str) -> bool:
    if text not in _YES_NO:
        raise Refused(f"must be yes or no, not {text}")
    return _YES_NO[text]


def _address(text: str) -> str:
    return read_address(text, "the address")


def _key(text: str) -> bytes:
    return read_hex(text, 32, "the key")


def _status(text: str) -> int:
    if text not in STATUSES:
        raise Refused(f"must be one of {', '.join(STATUSES)}, not {text}")
    return STATUSES.index(text)


def _entry(text: str) -> str:
    if len(text.encode()) > _MAX_ENTRY_BYTES or re.search(r"[\x00-\x1f\x7f]", text):
        raise Refused(f"the entry must be a text of at most {_MAX_ENTRY_BYTES} bytes, without control characters")
    return text


_PROVIDER: Final = Argument("provider", _uint(32, 1, param="the provider's id"), "Id of the provider.")
_MODEL: Final = Argument("model", _uint(32, 1, param="the model's id"), "Id of the model.")
_ALLOWED: Final = Argument("allowed", _yes_no, "Answer yes or no.")
_ACCOUNT: Final = Argument("account", _address, "Address of the account.")

_TOKEN_GAS_HELP: Final = f"Gas, {MIN_TOKEN_GAS} to {MAX_TOKEN_GAS}."

VERBS: Final[dict[str, Verb]] = {
    "list-provider": Verb("Let a provider claim jobs.", (_PROVIDER,), lambda a, p: a.list_provider(p, True)),
    "delist-provider": Verb("Stop a provider's claims.", (_PROVIDER,), lambda a, p: a.list_provider(p, False)),
    "ceiling": Verb(
        "Bound the jobs that a provider runs at once.",
        (_PROVIDER, Argument("ceiling", _uint(32, param="the ceiling"), "Highest number of jobs.")),
        Admin.set_ceiling,
    ),
    "allow-all-models": Verb("Let a provider run every model, or not.", (_PROVIDER, _ALLOWED), Admin.allow_all_models),
    "allow-model": Verb("Let a provider run one model, or not.", (_PROVIDER, _MODEL, _ALLOWED), Admin.allow_model),
    "enable-model": Verb("Enable or disable a model that was set.", (_MODEL, _ALLOWED), Admin.enable_model),
    "sla": Verb(
        "Allow or forbid a window.",
        (
            Argument("seconds", _uint(32, 1, MAX_SLA_S, "the window"), f"Seconds, 1 to {MAX_SLA_S}."),
            _ALLOWED,
        ),
        Admin.allow_sla,
    ),
    "fees": Verb(
        "Set the fees of jobs posted from now on.",
        (
            Argument("bps", _uint(16, 0, MAX_FEE_BPS, "the fee in bps"), f"Basis points, 0 to {MAX_FEE_BPS}."),
            Argument("gas_fee", _uint(128, param="the gas fee"), "Amount in the token's smallest unit."),
        ),
        Admin.set_fees,
    ),
    "token-gas": Verb(
        "Set what one call of the token may use.",
        (Argument("gas", _uint(32, MIN_TOKEN_GAS, MAX_TOKEN_GAS, "the gas"), _TOKEN_GAS_HELP),),
        Admin.set_token_gas,
    ),
    "point-price": Verb(
        "Set the treasury's income for a point of reputation.",
        (Argument("price", _uint(96, param="the price"), "Amount in the token's smallest unit."),),
        Admin.set_point_price,
    ),
    "treasury": Verb("Change where fees go.", (_ACCOUNT,), Admin.set_treasury),
    "grant-relayer": Verb("Let an account relay, on all registries.", (_ACCOUNT,), lambda a, r: a.set_relayer(r, True)),
    "revoke-relayer": Verb("Let it relay no longer.", (_ACCOUNT,), lambda a, r: a.set_relayer(r, False)),
    "pause": Verb("Stop posts and claims. Claimed jobs continue.", (), lambda a: a.pause(True)),
    "unpause": Verb("Let posts and claims go on.", (), lambda a: a.pause(False)),
    "allowlist": Verb(
        "Set the status of an escrow key.",
        (
            Argument("key", _key, "The key, 32 bytes of hex."),
            Argument("status", _status, f"One of {', '.join(STATUSES)}."),
            Argument("entry", _entry, "Description; may be empty."),
        ),
        Admin.set_allowlist,
    ),
    "transfer-ownership": Verb("Offer all registries to an account.", (_ACCOUNT,), Admin.transfer_ownership),
    "take-back-ownership": Verb("Take back an offer that is not accepted.", (), Admin.take_back_offer),
    "accept-ownership": Verb("Accept the registries offered to the sender.", (), Admin.accept_ownership),
}


def set_model(admin: Admin, options: SimpleNamespace) -> Action:
    """Return the action of `set-model`. Raises Refused when a value is wrong."""
    schema = read_schema(options.params_schema) if options.params_schema is not None else None
    model = read_model(_MODEL.read(options.model), options.name, options.owned_by, schema, "the model")
    return admin.set_model(model, not options.disabled)
