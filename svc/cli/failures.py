"""Map each error to an exit code and a hint."""

from typing import Any, Final

from svc import errors
from svc.cli.exit_codes import ExitCode
from svc.errors import SvcError
from svc.signer_command import ADDRESS_VARIABLE
from svc.wallets import PASSWORD_FILE_VARIABLE, WALLET_VARIABLES

_EXIT_CODES: Final[tuple[tuple[type[SvcError], ExitCode], ...]] = (
    (errors.OrderRefused, ExitCode.USAGE),
    (errors.OutcomeUnknown, ExitCode.STILL_RUNNING),
    (errors.SigningFailed, ExitCode.NO_KEY),
    (errors.PostRefused, ExitCode.REFUSED),
    (errors.JobFailed, ExitCode.NO_RESULT),
    (errors.ResultTakenBack, ExitCode.NO_RESULT),
    (errors.BatchFailed, ExitCode.NO_RESULT),
    (errors.TabFaulty, ExitCode.NO_RESULT),
    (errors.TabRequestFailed, ExitCode.NO_RESULT),
    (errors.WaitTimedOut, ExitCode.STILL_RUNNING),
    (errors.ReceiptTimeout, ExitCode.STILL_RUNNING),
    (errors.ResultUnreadable, ExitCode.UNREADABLE),
)
_WALLET_KEY_SETTINGS: Final = frozenset({*WALLET_VARIABLES, PASSWORD_FILE_VARIABLE, ADDRESS_VARIABLE, "SVC_CIPHER_KEY"})
_HINT_BY_CODE: Final = {
    "connection_failed": "check that the coordinator is running; set SVC_BASE_URL or --coordinator; run svc doctor",
    "outcome_unknown": "the job or batch may be running: check svc status or svc batch list before you order again",
    "no_live_provider": "see svc asks for providers, or make an open offer with --rate-in and --rate-out",
    "plan_short": "use --market to queue the rest at the current prices, set --rate-in and --rate-out, choose a longer"
    " --window, or send fewer lines",
    "escrow_unavailable": "this coordinator has no escrow for open orders: name a provider, or omit the rates",
    "escrow_mock": "this is a development escrow: use --allow-mock-escrow for tests only",
    "escrow_not_pinned": "see the key with svc escrow; if the operator announced the change, set it with --escrow-key",
    "escrow_changed": "see the known keys with svc market show; nothing was sealed",
    "deployment_changed": "see the known deployment with svc market show; nothing was signed",
    "box_key_changed": "see the known keys with svc market show; nothing was sealed",
    "chain_contradicts": "retry in a moment; if the difference persists, sign nothing here and ask the operator",
    "node_failed": "set other nodes with SVC_RPC_URL or --rpc-url; without a node the chain is not checked",
    "over_max_amount": "request less output, offer lower rates, or raise --max-amount",
    "payer_has_code": "pay from an account without contract code or delegation",
    "InsufficientBalance": "the wallet holds too little of the payment token: fund it (svc address, svc balance)",
    "unknown_tab": "see the open tabs with svc tab list",
    "in_use": "another command uses the tab: wait until that command ends, or end it",
    "tab_full": "the tab's cap is used up: open another tab with svc tab open",
    "tab_refused": "retry, or choose another provider with --provider",
    "tab_stuck": "settle the tab with svc tab close, and open another tab",
    "wrong_answer": "nothing is paid for this answer; see svc tab list, and open a tab with another provider",
    "overcharged": "keep the receipt; the provider gets no further tab until svc tab forgive",
    "NotCancellable": "a provider has claimed the job: the job will be completed and paid, or fully refunded",
    "window_not_allowed": "choose an allowed window with --window",
    "sla_secs": "see svc asks for windows with prices, and choose one with --window",
    "SlaNotAllowed": "see svc asks for windows with prices, and choose one with --window",
    "other_result": "read the settled result with svc result",
    "no_result": "wait for the result with svc wait or svc batch wait",
    "reads_disabled": "set SVC_PIN_GATEWAY or --gateway",
    "gateway_unavailable": "try another gateway with --gateway",
    "unseal_failed": "the result is sealed to another key: use the wallet or SVC_CIPHER_KEY of the order",
    "model_not_found": "list the models with svc models",
    "model": "list the models with svc models",
    "SVC_WALLET_KEY": "create a key with svc keygen, and set SVC_WALLET_KEY_FILE or --key-file",
    "SVC_WALLET_KEY_FILE": "create a key file with svc keygen, or name one with --key-file",
}


def exit_code_for(error: SvcError) -> ExitCode:
    if error.param in _WALLET_KEY_SETTINGS:
        return ExitCode.NO_KEY
    if error.code == "no_result":  # the result does not exist yet
        return ExitCode.STILL_RUNNING
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.REFUSED


def hint_for(error: SvcError) -> str | None:
    for key in (error.code, error.param):
        if key in _HINT_BY_CODE:
            return _HINT_BY_CODE[key]
    return None


def error_json(error: SvcError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.type,
        "code": error.code,
        "param": error.param,
        "request_id": error.request_id,
        "retryable": error.retryable,
    }
