"""Failures of a command: the exit code of each, and a hint about what to do."""

from typing import Any, Final

from svc import errors
from svc.cli.exit_codes import Exit
from svc.errors import SvcError
from svc.signer_command import ADDRESS
from svc.wallets import PASSWORD_FILE, WAYS

_BY_CLASS: Final[tuple[tuple[type[SvcError], Exit], ...]] = (
    (errors.OrderRefused, Exit.USAGE),
    (errors.OutcomeUnknown, Exit.STILL_RUNNING),
    (errors.SigningFailed, Exit.NO_KEY),
    (errors.PostRefused, Exit.REFUSED),
    (errors.JobFailed, Exit.NO_RESULT),
    (errors.ResultTakenBack, Exit.NO_RESULT),
    (errors.BatchFailed, Exit.NO_RESULT),
    (errors.WaitTimedOut, Exit.STILL_RUNNING),
    (errors.ReceiptTimeout, Exit.STILL_RUNNING),
    (errors.ResultUnreadable, Exit.UNREADABLE),
)
_KEYS: Final = frozenset({*WAYS, PASSWORD_FILE, ADDRESS, "SVC_CIPHER_KEY"})
_HINTS: Final = {
    "connection_failed": "is the coordinator up? Set SVC_BASE_URL or --coordinator; svc doctor looks closer",
    "outcome_unknown": "it may be under way: see svc status, or svc batch list; what is ordered anew is paid anew",
    "no_live_provider": "see svc asks for who sells what; or make an open offer with --rate-in and --rate-out",
    "plan_short": "let the rest wait for room at the present prices with --market, offer --rate-in and --rate-out, give"
    " it a longer --window, or send fewer lines",
    "escrow_unavailable": "this coordinator hosts no escrow for open orders: name a provider, or give no rates",
    "escrow_mock": "a development escrow: --allow-mock-escrow takes it, for tests",
    "escrow_not_pinned": "svc escrow shows the key; if its change was announced, pin the new one with --escrow-key",
    "escrow_changed": "svc market show tells what is known; nothing was sealed",
    "deployment_changed": "svc market show tells what is known; nothing was signed",
    "box_key_changed": "svc market show tells what is known; nothing was sealed",
    "chain_contradicts": "look again in a moment; if it stays, sign nothing here and ask the operator",
    "node_failed": "give other nodes with SVC_RPC_URL or --rpc-url; without any, the coordinator is taken at its word",
    "over_max_amount": "ask for less output, offer less, or raise the ceiling",
    "payer_has_code": "pay from an account without contract code or delegation",
    "InsufficientBalance": "the wallet holds less of the payment token than the order's amount; svc doctor shows it",
    "NotCancellable": "a provider has claimed it: it completes and is paid, or all of the payment comes back",
    "window_not_allowed": "choose one of these with --window",
    "sla_secs": "svc asks lists the windows that prices are asked for; choose one with --window",
    "SlaNotAllowed": "svc asks lists the windows that prices are asked for; choose one with --window",
    "other_result": "svc result reads the one that was settled",
    "no_result": "wait for it with svc wait, or svc batch wait",
    "reads_disabled": "set SVC_PIN_GATEWAY or --gateway",
    "gateway_unavailable": "try another gateway with --gateway",
    "unseal_failed": "it was sealed to another key: use the wallet or SVC_CIPHER_KEY that ordered it",
    "model_not_found": "svc models lists what there is",
    "model": "svc models lists what there is",
    "SVC_WALLET_KEY": "svc keygen makes a key; SVC_WALLET_KEY_FILE or --key-file names its file",
    "SVC_WALLET_KEY_FILE": "svc keygen makes a key and writes such a file; --key-file names one as well",
}


def exit_of(error: SvcError) -> Exit:
    if error.param in _KEYS:
        return Exit.NO_KEY
    if error.code == "no_result":  # nothing is wrong with it: it is not there yet
        return Exit.STILL_RUNNING
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return Exit.TRY_AGAIN if error.retryable else Exit.REFUSED


def hint_of(error: SvcError) -> str | None:
    for key in (error.code, error.param):
        if key in _HINTS:
            return _HINTS[key]
    return None


def in_json(error: SvcError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.type,
        "code": error.code,
        "param": error.param,
        "request_id": error.request_id,
        "retryable": error.retryable,
    }
