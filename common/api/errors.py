"""Errors of the API: each code with its type, its cause and its remedy, and the errors of the contracts.

Routes declare the codes that they return. `/openapi.json` takes cause and remedy from this module. A test checks that
this table, the routes and the coordinator's code name the same codes.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from common.api.error_bodies import ErrorType


@attrs.frozen(slots=True)
class KnownError:
    """Error with its cause and remedy. `code` is None if the specification defines only a type for the error."""

    code: str | None
    types: tuple[ErrorType, ...]
    cause: str
    remedy: str


RECEIPT_TIMEOUT: Final = "receipt_timeout"
"""Type of the error whose code is a transaction hash."""

_RETRY_REMEDY: Final = "send the same request again later"
_SIGN_REMEDY: Final = (
    "sign exactly the values that you send, in the domain of GET /evm/chain, with the wallet that the request names"
)


def _invalid_request(code: str, cause: str, remedy: str) -> KnownError:
    return KnownError(code, ("invalid_request_error",), cause, remedy)


def _authentication_error(code: str, cause: str, remedy: str, *types: ErrorType) -> KnownError:
    return KnownError(code, types or ("authentication_error",), cause, remedy)


def _relay_error(code: str, cause: str, remedy: str = _RETRY_REMEDY) -> KnownError:
    return KnownError(code, ("relay_unavailable",), cause, remedy)


def _store_error(code: str, cause: str, remedy: str = _RETRY_REMEDY) -> KnownError:
    return KnownError(code, ("pinner_unavailable",), cause, remedy)


def _uncoded_error(kind: ErrorType, cause: str, remedy: str) -> KnownError:
    return KnownError(None, (kind,), cause, remedy)


# Errors without a code, by the status or type with which routes declare them.
UNCODED_ERRORS: Final[Mapping[int | str, KnownError]] = {
    400: _uncoded_error(
        "invalid_request_error",
        "a field, parameter or header is missing or malformed, or the message is no HTTP; `message` names all, `param`"
        " the first",
        "correct what `message` names",
    ),
    404: _uncoded_error(
        "not_found", "the object does not exist, or belongs to another owner", "check the id and its owner"
    ),
    405: _uncoded_error(
        "invalid_request_error", "the path has no such method", "use one that the header `allow` names"
    ),
    408: _uncoded_error(
        "invalid_request_error", "the body did not arrive in time", "send it faster, or in a smaller body"
    ),
    409: _uncoded_error(
        "invalid_request_error",
        "the chain refuses with an error that is not known here; `message` holds its data",
        "report it to the operator",
    ),
    416: _uncoded_error("invalid_request_error", "the range lies outside of the file", "ask within `content-range`"),
    431: _uncoded_error(
        "invalid_request_error", "the request's head exceeds 16 KiB or 100 headers", "send fewer or shorter headers"
    ),
    500: _uncoded_error(
        "internal_error", "an unexpected failure of the coordinator", "report the `x-request-id` to its operator"
    ),
    505: _uncoded_error("invalid_request_error", "the HTTP version is neither 1.0 nor 1.1", "speak HTTP/1.1"),
    "busy": _uncoded_error(
        "busy",
        "too many requests: of this caller, on this job or provider, or beyond a wallet's budget of gas or storage",
        "send the same again after `retry-after` seconds",
    ),
    "not_ready": _uncoded_error(
        "not_ready", "the index catches up with the chain, or the database does not answer", "ask again in a second"
    ),
    "chain_unreachable": _uncoded_error("chain_unreachable", "the coordinator's node does not answer", _RETRY_REMEDY),
    "invalid_op_signature": _uncoded_error(
        "invalid_op_signature", "`signature` does not recover to a registered provider's wallet", _SIGN_REMEDY
    ),
    RECEIPT_TIMEOUT: _uncoded_error(
        "receipt_timeout",
        "the transaction, whose hash is the `code`, was sent and is not mined after 60 s",
        "poll the route that `message` names: it may still take effect. A proxy's 504 has neither this `error.type` nor"
        " `x-svc-retryable`: look, and send the same again",
    ),
}

_ERRORS_WITH_CODE: Final = (
    # Orders.
    _invalid_request("cap_overflow", "the cap does not fit 128 bits", "lower rates or units"),
    _invalid_request("invalid_order_signature", "`signature` does not recover to `owner`", _SIGN_REMEDY),
    _invalid_request(
        "container_without_payment", "the request has a container but no `auth_sig`", "send both or neither"
    ),
    _invalid_request(
        "container_required",
        "the request has `auth_sig` but no container",
        "send `container`, or `container_cid` of an upload",
    ),
    _invalid_request("container_ambiguous", "the request has both `container` and `container_cid`", "send one of them"),
    _invalid_request(
        "invalid_payment_signature",
        "`auth_sig` does not recover to `owner` over the payment of `amount`",
        "sign the quote's `authorization` as it is",
    ),
    _invalid_request(
        "payer_has_code",
        "the owner is a contract, or delegates to one",
        "pay from an account without code",
    ),
    _invalid_request(
        "unknown_container",
        "`container_cid` is not a live `input` upload of the owner",
        "upload the container (again: an unused upload is gone after 300 s)",
    ),
    _invalid_request("too_short", "the container has fewer than 122 bytes", "send a whole container"),
    _invalid_request("bad_version", "the container's first byte is not 1", "seal it in version 1"),
    _invalid_request(
        "commitment_mismatch", "the container does not reproduce `c`", "send the container that the order commits to"
    ),
    # Sessions.
    _authentication_error(
        "invalid_session", "the bearer token is missing, malformed or expired", "open a session: GET /auth/nonce"
    ),
    _authentication_error(
        "invalid_signature",
        "the signature is malformed or of another wallet",
        _SIGN_REMEDY,
        "authentication_error",
        "invalid_op_signature",
    ),
    _authentication_error(
        "not_registered",
        "the wallet does not belong to a registered provider",
        "register() it in the provider registry; for a poll, open a session with role `provider`",
        "authentication_error",
        "invalid_op_signature",
    ),
    # Files and batches.
    _invalid_request(
        "body_too_large", "the body is over the route's limit", "send less; containers and results go by /v1/files"
    ),
    _invalid_request("file_too_large", "the file is over the operator's limit (MAX_BLOB_BYTES)", "send a smaller file"),
    _invalid_request("invalid_purpose", "`purpose` is not input, result or batch", "send one of them, before the file"),
    _invalid_request("empty_file", "the file has no bytes, or no line that is not blank", "send its content"),
    _invalid_request("too_many_lines", "a batch file has over 50,000 lines", "cut it into several"),
    _invalid_request(
        "bad_container", "the upload is not a sealed container", "send the container unchanged, as it was sealed"
    ),
    _invalid_request("invalid_endpoint", "`endpoint` is not /v1/responses or /v1/embeddings", "send one of them"),
    _invalid_request("invalid_completion_window", "`completion_window` is not 1h or 24h", "send one of them"),
    _invalid_request(
        "invalid_input_file",
        "`input_file_id` is not a live `batch` upload of this address",
        "upload the lines (again: an unused upload is gone after 300 s)",
    ),
    _invalid_request(
        "idempotency_key_reused",
        "another batch was created with this key and another body",
        "use a new key, or send the body of then",
    ),
    _invalid_request("batch_not_cancellable", "the batch has ended, or every line of it has", "read the batch"),
    # Webhooks.
    _invalid_request("webhooks_unavailable", "this coordinator posts no webhooks", "follow the events, or poll"),
    _invalid_request("too_many_webhooks", "the wallet has ten endpoints", "remove one"),
    _invalid_request(
        "webhooks_need_funds", "the wallet has no tokens and no settled job", "fund it, or follow the events"
    ),
    _invalid_request(
        "webhook_disabled", "the endpoint is disabled and gets no messages", "remove the endpoint and add it again"
    ),
    # Ops and asks.
    _invalid_request(
        "result_required", "a settle has no result, or an empty one", "send `result`, or `result_cid` of an upload"
    ),
    _invalid_request("result_ambiguous", "the request has both `result` and `result_cid`", "send one of them"),
    _invalid_request(
        "unknown_result",
        "`result_cid` is not a live `result` upload of this session's address",
        "upload the result (again: an unused upload is gone after 300 s)",
    ),
    _authentication_error(
        "provider_mismatch", "the signer operates another provider", "name the signer's own provider id"
    ),
    _invalid_request(
        "stale_snapshot", "`signed_at` is not newer than the provider's latest snapshot", "sign a newer one"
    ),
    _invalid_request(
        "superseded", "a newer snapshot is on the chain already", "read GET /evm/asks; sign a newer one to change it"
    ),
    # The escrow.
    _invalid_request("escrow_unavailable", "this coordinator hosts no escrow", "order of a named provider"),
    _invalid_request(
        "escrow_handover_disabled", "the operator of this escrow keeps the keys, so they are not handed over", "none"
    ),
    KnownError("escrow_key_unminted", ("not_ready",), "the escrow waits for its keys", _RETRY_REMEDY),
    _invalid_request(
        "stale_issued_at",
        "`issued_at` is not within 600 s of the coordinator's clock",
        "set your clock, sign again with a new `issued_at`",
    ),
    _invalid_request(
        "wrap_mismatch", "`seed_wrap` and `ct_hash` do not reproduce the job's commitment", "take the job's container"
    ),
    _invalid_request("unseal_failed", "no key of this escrow opens the wrap", "fail the job within 300 s of its claim"),
    _authentication_error(
        "wrong_wallet", "the signature is not of the wallet that claimed the job", "sign with the claimer's wallet"
    ),
    KnownError("no_claim", ("not_found",), "the chain has no such job", "check the job id"),
    _invalid_request("not_claimed", "the job is not claimed, or has ended", "claim it first, or wait for the claim"),
    # Tabs.
    KnownError("unknown_job", ("not_found",), "the index has no such job", "check the job id, or wait for its block"),
    _authentication_error(
        "not_party",
        "the session is neither the owner's nor the provider's of this job",
        "sign in as the owner, or as the provider with role `provider`",
    ),
    KnownError(
        "escrow_key_lost",
        ("not_found",),
        "the job is sealed to a key that no instance holds any more",
        "fail the job within 300 s of its claim",
    ),
    _invalid_request("bad_binding", "the evidence was not made for this channel", "make it for `channel_pubkey`"),
    _invalid_request(
        "debug_evidence",
        "the operator of the requesting instance can read its memory",
        "request from an instance without debug access",
    ),
    _invalid_request(
        "stale_release", "the instance that asks runs an older release than the holder", "run the holder's release"
    ),
    _authentication_error("bad_operator_signature", "`operator_signature` is not a signature", "sign HandoverAuth"),
    _authentication_error(
        "operator_not_authorized", "the signer is not an operator of this escrow", "sign with an OPERATOR_KEY of both"
    ),
    _invalid_request("not_allowlisted", "the instance's measurement is not on the allowlist", "have the admin list it"),
    _invalid_request("tombstoned", "the instance's measurement is withdrawn", "run another build"),
    # Models.
    KnownError("model_not_found", ("not_found",), "there is no model of this name", "take a name of GET /v1/models"),
    # The coordinator's account, its node, its store.
    _relay_error("relayer_funds", "the coordinator's account is out of native coin"),
    _relay_error("nonce_conflict", "the coordinator's account lost a race for a nonce"),
    _relay_error("rpc_internal", "the coordinator's node failed"),
    _relay_error("rate_limited", "the coordinator's node limits its requests"),
    _relay_error("endpoint_refused", "the coordinator's node refuses the transaction"),
    _relay_error("relay_queue_full", "the queue of transactions is full"),
    _relay_error("relay_queue_timeout", "the transaction waited too long in the queue, and was not sent"),
    _relay_error("config_read", "fees or gas price could not be read from the chain"),
    _relay_error("payer_code_read", "models, windows or the payer could not be read from the chain"),
    _relay_error("provider_id_read", "the wallet's provider id could not be read from the chain"),
    _relay_error("registry_floor_read", "fees, or the time of the latest asks, could not be read from the chain"),
    _relay_error("claim_simulate_read", "the claim could not be tried on the chain"),
    _relay_error("job_read", "the job could not be read from the chain, or its claim is not deep enough yet"),
    _relay_error("allowlist_status_read", "the allowlist could not be read from the chain"),
    _relay_error("publication_skipped", "the transaction was mined but published nothing"),
    _store_error("store_unavailable", "the object store does not answer"),
    _store_error("store_rejected", "the object store refused the request"),
    _store_error(
        "object_missing",
        "the object store no longer holds the object",
        "retry later; if the error persists, the object is lost",
    ),
)

_ASKS_ROUTE_NOTE: Final = "PUT /evm/asks answers 400 with `param`"

ERRORS_BY_CODE: Final[Mapping[str, KnownError]] = {
    error.code: error for error in _ERRORS_WITH_CODE if error.code is not None
}

# Codes of batch lines that did not settle. A line may also have a code of POST /v1/jobs or of a contract.
LINE_ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "invalid_json": ("the line is not a JSON object", "write one object on each line"),
    "invalid_line": ("a field is missing or malformed, or the line wraps a body", "write a whole submission"),
    "endpoint_mismatch": ("`url` is not the batch's endpoint", "omit `url`, or set it to the batch's endpoint"),
    "order_expired": ("`expires_at` had passed when the line was processed", "sign a later one"),
    "expiry_too_far": ("`expires_at` was more than a day ahead when the line was processed", "sign an earlier one"),
    "sla_too_long": ("`sla_secs` is above 86400", "sign a shorter window"),
    "insufficient_payment": (
        "`amount` was below or above cap + fee + gas_fee when the line was processed",
        "pay the amount of a new quote",
    ),
    "invalid_model": ("`model_id` was not an enabled model when the line was processed", "order another"),
    "duplicate_job_id": ("another line is the same order", "none: the other line posts the order"),
    "cancelled": ("the batch was cancelled before the post, or the owner cancelled the job", "order again"),
    "provider_fail": ("the provider failed the job; the payment came back", "order again"),
    "reclaim": ("the provider missed the window; the payment came back", "order again"),
    "expired": (
        "the batch ended before the post, or no provider claimed the job in time",
        "order again, or offer more",
    ),
}


@attrs.frozen(slots=True)
class ContractError:
    """Contract errors with the same cause.

    `said_of` lists the calls that return these errors, separated by commas. `every op` stands for `_SIGNED_OPS`.
    """

    names: tuple[str, ...]
    said_of: str
    cause: str
    remedy: str

    def is_returned_by(self, call: str) -> bool:
        return call in {
            name for each in self.said_of.split(", ") for name in (_SIGNED_OPS if each == "every op" else [each])
        }


_SIGNED_OPS: Final = ("claim", "settle", "fail", "cancel", "set_identity", "request_capacity")
PROVIDER_OPS: Final = ("claim", "settle", "fail", "set_identity", "request_capacity")

CONTRACT_ERRORS: Final = (
    ContractError(
        ("DuplicateJob",), "post", "this owner has posted or discarded this `c`", "look at the job, or use a fresh `c`"
    ),
    ContractError(
        ("ModelNotEnabled",),
        "post",
        "the market does not accept the model; POST /v1/jobs usually answers 400 with `param` `model_id`, a batch"
        " `invalid_model`",
        "use an `enabled` model (GET /v1/models)",
    ),
    ContractError(
        ("SlaNotAllowed",),
        "post",
        "the market does not accept the window; POST /v1/jobs usually answers 400 with `param` `sla_secs`",
        "take one of `windows` (GET /evm/chain)",
    ),
    ContractError(("OrderExpired",), "post", "`expiresAt` is past", "sign a later one"),
    ContractError(("ExpiryTooFar",), "post", "`expiresAt` is more than a day ahead", "sign an earlier one"),
    ContractError(("CapOverflow",), "post", "the cap does not fit 128 bits", "lower rates or units"),
    ContractError(("WrongAmount",), "post", "the amount is not cap + fee + gas_fee", "take a new quote"),
    ContractError(
        ("InvalidOrderSignature",),
        "post",
        "the signature is not the owner's over these values in this domain",
        "compare your values with the worked order",
    ),
    ContractError(
        ("InvalidPaymentSignature",),
        "post, claim",
        "the signature is not the owner's over these values in this domain",
        "compare your values with the worked order",
    ),
    ContractError(
        ("PayerHasCode",), "post, claim", "the owner is a contract or delegates to one", "pay from a plain account"
    ),
    ContractError(
        ("AuthorizationUsed",), "post", "the payment's nonce is used or cancelled", "order again with a fresh `c`"
    ),
    ContractError(
        ("InsufficientBalance",),
        "post",
        "the owner has less than `amount` plus its other open orders",
        "fund it",
    ),
    ContractError(
        ("InvalidCid",), "post, settle", "the content id is empty or longer than 128 bytes", "upload it again"
    ),
    ContractError(
        ("NotRelayer",), "post, claim, settle", "the coordinator lacks its role", "report it to the operator"
    ),
    ContractError(("EnforcedPause",), "post, claim", "the market is paused", "wait"),
    ContractError(
        ("UnknownJob",),
        "claim, settle, fail, cancel, reclaim",
        "the registry has no job with these terms",
        "check the job id",
    ),
    ContractError(("NotOpen",), "claim", "the job is claimed, ended or expired", "do not claim this job"),
    ContractError(
        ("UnknownProvider",),
        "claim, set_identity, request_capacity, asks",
        "the signer is not registered",
        "`register()`",
    ),
    ContractError(
        ("NotListed", "ModelNotAllowed"),
        "claim",
        "the admin has not listed the provider or has not allowed the model for it, or the model is disabled",
        "ask the admin",
    ),
    ContractError(("NotDesignated",), "claim", "the job is designated to another provider", "do not claim this job"),
    ContractError(("AtCapacity",), "claim", "`active_jobs` is `capacity`", "end a job first"),
    ContractError(("PaymentRefused",), "claim", "the token refused the payment", "do not claim this job"),
    ContractError(
        ("PaymentShort",),
        "claim",
        "after the payment, the registry would hold less than it owes",
        "do not claim this job",
    ),
    ContractError(("EscrowFull",), "claim", "the sum of all payments does not fit 128 bits", "wait"),
    ContractError(("TokenUnreadable",), "post, claim", "the token did not answer a read", "wait"),
    ContractError(("WithdrawalRefused",), "withdraw", "the token refused the transfer", "try again later"),
    ContractError(
        ("StaleOp",),
        "every op",
        "`issued_at` is outside its limits",
        "set your clock, sign again with a new `issued_at`",
    ),
    ContractError(
        ("InvalidSignature",),
        "every op, asks",
        "the signature does not have 65 bytes, a low s and a v of 27 or 28",
        "encode the signature in this form",
    ),
    ContractError(
        ("NotClaimed",),
        "settle, fail, reclaim",
        "the job is open or has ended",
        "read the job: done if `state` is 2 and it is yours; claim it again if `state` is 0, otherwise drop it",
    ),
    ContractError(
        ("NotTheClaimer",), "settle, fail", "another provider claimed the job", "do not settle or fail this job"
    ),
    ContractError(("SlaExpired",), "settle", "the window has ended", "none: the job is reclaimed"),
    ContractError(("SlaNotExpired",), "reclaim", "the window is still open", "wait"),
    ContractError(("TooManyUnits",), "settle", "`completionTok` is above `unitsOut`", "settle at most `unitsOut`"),
    ContractError(("NotCancellable",), "cancel", "the job is claimed", "wait until the job has ended"),
    ContractError(
        ("NotTheOwner",),
        "cancel",
        "the cancellation is not signed by the owner, or the job does not exist",
        "sign with the owner's wallet",
    ),
    ContractError(("NothingToWithdraw",), "withdraw", "the account has no credit", "none"),
    ContractError(("EvidenceTooLong",), "set_identity", "the evidence is longer than 32,768 bytes", "publish less"),
    ContractError(
        ("AlreadyRegistered",), "register, acceptOperator", "the account operates a provider", "use that provider"
    ),
    ContractError(("NotProposed",), "acceptOperator", "the sender was not proposed", "have its operator propose it"),
    ContractError(("JobsActive",), "deregister", "the provider has a claimed job", "end the job first"),
    ContractError(("StaleSnapshot",), "asks", "`signed_at` is not newer than the last one", "sign again"),
    ContractError(("TooFarAhead",), "asks", f"the time is more than an hour ahead; {_ASKS_ROUTE_NOTE}", "sign again"),
    ContractError(
        ("TooManyQuotes",), "asks", f"the snapshot has more than 64 quotes; {_ASKS_ROUTE_NOTE}", "send fewer"
    ),
    ContractError(
        ("QuotesNotAscending",),
        "asks",
        f"the quotes are not in ascending order of model and window; {_ASKS_ROUTE_NOTE}",
        "sort the quotes, and send each model and window once",
    ),
    ContractError(
        ("ProviderMismatch",), "asks", "the signer operates another provider", "name the signer's own provider"
    ),
)


def contract_error_names(*calls: str) -> tuple[str, ...]:
    """Return the names of the errors that these calls can return."""
    return tuple(name for error in CONTRACT_ERRORS if any(map(error.is_returned_by, calls)) for name in error.names)


def declared_error(status: int, name: str | None) -> KnownError:
    """Return the error that a route declares.

    `name` is the code of the error, or its type if the error has no code. If `name` is None, the status selects the
    error.
    """
    if name is None:
        return UNCODED_ERRORS[status]
    if name in UNCODED_ERRORS:
        return UNCODED_ERRORS[name]
    if name in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[name]
    known = next(each for each in CONTRACT_ERRORS if name in each.names)
    return KnownError(name, ("invalid_request_error",), known.cause, known.remedy)
