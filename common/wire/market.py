"""Shapes of the market: the catalogue, providers, asks, floors, the allowlist, and quotes."""

from typing import Any, Generic, Literal, TypeVar

from common.wire.shapes import Address, Bytes32, Digits, HexBytes, N, Omittable, Shape

Zero = TypeVar("Zero")  # the coordinator promises "0"; clients read a number and check it


class ModelDetails(Shape, Generic[N], frozen=True):
    model_id: N
    enabled: bool
    params_schema: Omittable[dict[str, Any]] = None


class ModelFields(Shape, Generic[N], frozen=True):
    id: str
    owned_by: str
    svc: ModelDetails[N]


class ModelShape(ModelFields[Digits], frozen=True, tag_field="object", tag="model"):
    pass


class ModelAsOf(ModelShape, frozen=True, tag="model"):
    as_of_block: Digits


class ModelList(Shape, frozen=True):
    object: str
    data: list[ModelShape]
    as_of_block: Digits


class ProviderShape(Shape, Generic[N], frozen=True):
    provider_id: N
    operator: Address
    box_key: Bytes32 | None
    evidence: Any
    listed: bool
    reputation: N
    allow_all_models: bool
    allowed_models: tuple[N, ...]
    capacity: N
    active_jobs: N


class ProviderAsOf(ProviderShape[Digits], frozen=True):
    as_of_block: Digits


class ProviderList(Shape, frozen=True):
    providers: list[ProviderShape[Digits]]
    as_of_block: Digits


class AskShape(Shape, Generic[N], frozen=True):
    provider_id: N
    model_id: N
    sla: N
    rate_in: N
    rate_out: N


class AskList(Shape, frozen=True):
    asks: list[AskShape[Digits]]
    as_of_block: Digits


class Floor(Shape, Generic[N], frozen=True):
    model_id: N
    sla: N
    rate_in: N
    rate_out: N


class FloorList(Shape, frozen=True):
    floors: list[Floor[Digits]]
    as_of_block: Digits


class AllowlistEntry(Shape, frozen=True):
    key: HexBytes
    status: int
    entry: dict[str, Any]


class Allowlist(Shape, frozen=True):
    entries: list[AllowlistEntry]
    as_of_block: Digits


class ListedCandidate(Shape, Generic[N], frozen=True):
    provider_id: N
    box_key: Bytes32
    rate_in: N
    rate_out: N


class Candidates(Shape, Generic[N], frozen=True):
    candidates: tuple[ListedCandidate[N], ...]


class TokenDomainShape(Shape, frozen=True):
    name: str
    version: str
    chainId: int  # noqa: N815 - EIP-712 names it so
    verifyingContract: Address  # noqa: N815


class Authorization(Shape, Generic[N, Zero], frozen=True):
    domain: TokenDomainShape
    to: Address
    value: N
    valid_after: Zero
    valid_before: N
    nonce: Bytes32


class QuoteShape(Shape, Generic[N, Zero], frozen=True):
    cap: N
    fee_bps: int
    fee: N
    gas_fee: N
    amount: N
    authorization: Authorization[N, Zero]


class Accepts(Shape, frozen=True):
    scheme: Literal["eip3009"]
    network: str


class QuoteFields(Shape, Generic[N, Zero], frozen=True):
    quote: QuoteShape[N, Zero]
    candidates: tuple[ListedCandidate[N], ...]


class QuoteBodyShape(QuoteFields[Digits, Literal["0"]], frozen=True):
    accepts: list[Accepts]
