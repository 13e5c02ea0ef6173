"""Shapes of the API: every body that the coordinator answers with. Their types yield the OpenAPI document, so the
documented shape is the one that is sent.

Integers that may exceed 32 bits, and ids, are decimal strings; small enumerations are numbers.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Digits = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]*)$", description="a decimal integer")]
SignedDigits = Annotated[str, Meta(pattern=r"^(0|-?[1-9][0-9]*)$", description="a decimal integer")]
HexBytes = Annotated[str, Meta(pattern=r"^0x([0-9a-f]{2})*$")]
Address = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{40}$")]
Bytes32 = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{64}$")]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "invalid_op_signature",
    "not_found",
    "busy",
    "not_ready",
    "chain_unreachable",
    "relay_unavailable",
    "pinner_unavailable",
    "receipt_timeout",
    "internal_error",
]


class ErrorBody(msgspec.Struct):
    message: str
    type: ErrorType
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    error: ErrorBody


class ModelNotFoundBody(msgspec.Struct):
    message: str
    type: ErrorType
    code: Literal["model_not_found"]


class ModelNotFound(msgspec.Struct):
    error: ModelNotFoundBody


class Health(msgspec.Struct):
    status: Literal["ok"]


class Readiness(msgspec.Struct):
    ready: bool
    reason: Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"]
    cursor: Digits | None
    head_block: Digits | None
    lag: SignedDigits | None


class Nonce(msgspec.Struct):
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    expires_at: int
    chain_id: int


class Session(msgspec.Struct):
    token: str
    expires_at: int
    provider_id: int | UnsetType = UNSET


class ModelDetails(msgspec.Struct):
    model_id: Digits
    enabled: bool
    params_schema: dict[str, Any] | UnsetType = UNSET


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    owned_by: str
    svc: ModelDetails


class ModelAsOf(Model):
    as_of_block: Digits


class Job(msgspec.Struct):
    """A row of the job book."""

    job_id: Bytes32
    owner: Address
    c: Bytes32
    model_id: Digits
    sla_secs: Digits
    designated: Digits
    rate_in: Digits
    rate_out: Digits
    units_in: Digits
    units_out: Digits
    expires_at: Digits
    provider_id: Digits
    claimed_at: Digits
    completion_tok: Digits
    posted_block: Digits
    state: int
    ended_because: int
    task_cid: str
    result_cid: str | None


class JobAsOf(Job):
    as_of_block: Digits


class ClientJobDetails(msgspec.Struct):
    job_id: Bytes32
    owner: Address
    model_id: Digits
    sla_secs: Digits
    rate_in: Digits
    rate_out: Digits
    units_in: Digits
    units_out: Digits
    designated: Digits
    provider_id: Digits
    expires_at: Digits
    task_cid: str
    completion_tok: Digits
    state: int
    ended_because: int


class ClientJob(msgspec.Struct):
    id: Bytes32
    object: Literal["job"]
    model: str | None
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    in_progress_at: Digits | None
    result_cid: str | None
    svc: ClientJobDetails
    as_of_block: Digits


class ModelSummary(msgspec.Struct):
    jobs: Digits
    completed: Digits
    priced: Digits
    escrowed: Digits
    model_id: Digits


class Summary(msgspec.Struct):
    jobs: Digits
    completed: Digits
    priced: Digits
    escrowed: Digits
    by_model: list[ModelSummary]
    as_of_block: Digits


class Provider(msgspec.Struct):
    provider_id: Digits
    operator: Address
    box_key: Bytes32 | None
    evidence: Any
    listed: bool
    reputation: Digits
    allow_all_models: bool
    allowed_models: list[Digits]
    capacity: Digits
    active_jobs: Digits


class ProviderAsOf(Provider):
    as_of_block: Digits


class Ask(msgspec.Struct):
    provider_id: Digits
    model_id: Digits
    sla: Digits
    rate_in: Digits
    rate_out: Digits


class Floor(msgspec.Struct):
    model_id: Digits
    sla: Digits
    rate_in: Digits
    rate_out: Digits


class AllowlistEntry(msgspec.Struct):
    key: HexBytes
    status: int
    entry: dict[str, Any]


class ListedCandidate(msgspec.Struct):
    provider_id: Digits
    box_key: Bytes32
    rate_in: Digits
    rate_out: Digits


class Contracts(msgspec.Struct):
    job_registry: Address
    provider_registry: Address
    ask_registry: Address
    paytoken: Address


class TokenName(msgspec.Struct):
    name: str
    version: str


class Deployment(msgspec.Struct):
    chain_id: int
    contracts: Contracts
    decimals: int
    token_domain: TokenName
    gas_price: Digits
    head_block: Digits
    block_time_ms: int
    fee_bps: int


class TokenDomain(msgspec.Struct):
    name: str
    version: str
    chainId: int  # noqa: N815 - EIP-712 names it so
    verifyingContract: Address  # noqa: N815


class Authorization(msgspec.Struct):
    domain: TokenDomain
    to: Address
    value: Digits
    valid_after: Literal["0"]
    valid_before: Digits
    nonce: Bytes32


class Quote(msgspec.Struct):
    cap: Digits
    fee_bps: int
    fee: Digits
    gas_fee: Digits
    amount: Digits
    authorization: Authorization


class Accepts(msgspec.Struct):
    scheme: Literal["eip3009"]
    network: str


class Candidates(msgspec.Struct):
    candidates: list[ListedCandidate]


class QuoteBody(msgspec.Struct):
    quote: Quote
    candidates: list[ListedCandidate]
    accepts: list[Accepts]


class Posted(msgspec.Struct):
    job_id: Bytes32
    task_cid: str
    tx_hash: Bytes32


class Cancelled(msgspec.Struct):
    job_id: Bytes32
    tx_hash: Bytes32


class OpDone(msgspec.Struct):
    tx_hash: Bytes32
    status: Literal["success"]
    block_number: Digits
    result_cid: str | UnsetType = UNSET


class OpRefused(msgspec.Struct):
    """`reason` is the contract error's name; `unknown` comes with the revert data in `raw`."""

    ok: Literal[False]
    reason: str
    raw: HexBytes | UnsetType = UNSET


class ClaimAccepted(msgspec.Struct):
    ok: Literal[True]


class ClaimRefused(msgspec.Struct):
    ok: Literal[False]
    reason: str


class Published(msgspec.Struct):
    provider_id: Digits
    signed_at: Digits
    published: Literal[True]
    tx_hash: Bytes32
