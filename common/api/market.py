"""Shapes of the market: the catalogue, providers, asks, floors, the allowlist, and quotes."""

import enum
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from common.api.limits import RELIABILITY_PERIOD_S
from common.api.shapes import Address, Bytes32, Digits, HexBytes, N, Omittable, Shape, described
from common.api.states import meanings
from common.api.words import WORDS

ENDPOINT_KEYWORD: Final = "x-svc-endpoint"
"""Key in a model's published schema, because the registry has no field for the endpoint."""

Zero = TypeVar("Zero")  # the coordinator promises "0"; clients read a number and check it


class ModelDetails(Shape, Generic[N], frozen=True):
    """Data of a model that orders need."""

    model_id: N
    enabled: bool
    params_schema: Omittable[dict[str, Any]] = None
    endpoint: Annotated[
        Omittable[str],
        described(
            "OpenAI route whose requests and answers the model's `input` and `output` are like, as the admin published"
            f" it in `{ENDPOINT_KEYWORD}` of the schema; absent where none is published",
            "/v1/responses",
        ),
    ] = None


class ModelFields(Shape, Generic[N], frozen=True):
    id: Annotated[str, described("name of the model, which may hold slashes", "demo/text-small")]
    owned_by: str
    svc: ModelDetails[N]


class ModelShape(ModelFields[Digits], frozen=True, tag_field="object", tag="model"):
    """A model of the catalogue."""


class ModelAsOf(ModelShape, frozen=True, tag="model"):
    """A model of the catalogue, and when it was read."""

    as_of_block: Digits


class ModelList(Shape, frozen=True):
    """A page of the catalogue."""

    object: Annotated[str, described("kind of the object: `list`", "list")]
    data: list[ModelShape]
    as_of_block: Digits


class Reliability(Shape, Generic[N], frozen=True):
    """Outcomes of a provider's recently claimed jobs. A new provider has low counts."""

    window_secs: Annotated[N, described("how far back the counts go, in seconds", str(RELIABILITY_PERIOD_S))]
    settled: Annotated[N, described("jobs that it settled", "12")]
    failed: Annotated[N, described("jobs that it gave up", "1")]
    reclaimed: Annotated[N, described("jobs whose window it missed", "0")]
    median_secs: Annotated[
        N | None, described("median time from the claim to the settle, in seconds; null where nothing settled", "31")
    ]
    units_per_sec: Annotated[
        Omittable[N],
        described("output units charged per second from the claim to the settle; absent where none was charged", "120"),
    ] = None


Reliable = Annotated[
    Omittable[Reliability[N]],
    described("how the jobs that it claimed ended in the last seven days: of the model, or of a provider's all models"),
]


LargestBundle = Annotated[
    Omittable[int],
    described(
        "most requests in one job, as the provider announces it; absent for a provider that takes no bundles", 500
    ),
]


class ProviderFields(Shape, Generic[N], frozen=True):
    provider_id: N
    operator: Address
    box_key: Bytes32 | None
    evidence: Annotated[Any, described("published evidence: its JSON, otherwise its bytes as hex, or null", None)]
    listed: bool
    reputation: N
    allow_all_models: bool
    allowed_models: tuple[N, ...]
    capacity: N
    active_jobs: N
    reliability: Reliable[N] = None
    largest_bundle: LargestBundle = None


class ProviderShape(ProviderFields[Digits], frozen=True, kw_only=True):
    """A provider as the registry knows it."""

    requested: Digits


class ProviderAsOf(ProviderShape, frozen=True, kw_only=True):
    """A provider, and when it was read."""

    as_of_block: Digits


class ProviderList(Shape, frozen=True):
    """A page of the providers."""

    providers: list[ProviderShape]
    as_of_block: Digits


class AskShape(Shape, Generic[N], frozen=True):
    """A provider's published price for a model and window."""

    provider_id: N
    model_id: N
    sla: N
    rate_in: N
    rate_out: N
    reliability: Reliable[N] = None
    largest_bundle: LargestBundle = None


class AskList(Shape, frozen=True):
    """A page of the asks."""

    asks: list[AskShape[Digits]]
    as_of_block: Digits


class Floor(Shape, Generic[N], frozen=True):
    """The lowest rates for a model and window. The two rates may belong to different providers."""

    model_id: N
    sla: N
    rate_in: N
    rate_out: N


class FloorList(Shape, frozen=True):
    """A page of the floors."""

    floors: list[Floor[Digits]]
    as_of_block: Digits


_RATES: Final = {"low": "90000", "median": "100000", "high": "120000"}


class RateRangeShape(Shape, Generic[N], frozen=True):
    """Rates that jobs were settled at, in base units for 10^6 units."""

    low: Annotated[N, described("the lowest of them", "90000")]
    median: Annotated[N, described("the median of them; of two in the middle the lower", "100000")]
    high: Annotated[N, described("the highest of them", "120000")]


class PricePoint(Shape, Generic[N], frozen=True):
    """Rates of the jobs that were claimed in one stretch of time and settled."""

    since: Annotated[N, described("beginning of the stretch, in Unix seconds", "1800000000")]
    jobs: Annotated[N, described("jobs of the stretch that were looked at", "12")]
    rate_in: Annotated[RateRangeShape[N], described("rates for 10^6 input units, in base units", _RATES)]
    rate_out: Annotated[RateRangeShape[N], described("rates for 10^6 output units, in base units", _RATES)]


class PriceHistoryFields(Shape, Generic[N], frozen=True):
    model_id: N
    bucket_secs: Annotated[N, described("length of each stretch, in seconds", "3600")]
    prices: Annotated[tuple[PricePoint[N], ...], described("stretches that hold a settled job, the oldest first")]


class PriceHistory(PriceHistoryFields[Digits], frozen=True):
    """Rates paid for a model over time, from a sample of its settled jobs."""

    as_of_block: Digits


class AllowlistStatus(enum.IntEnum):
    NOT_LISTED = 0
    ALLOWED = 1
    TOMBSTONED = 2


AllowlistStatusNumber = Annotated[
    int,
    meanings(
        "note of the market's admin on such instances",
        AllowlistStatus.ALLOWED,
        {
            AllowlistStatus.NOT_LISTED: "nothing, or no more",
            AllowlistStatus.ALLOWED: "keys may be handed to them",
            AllowlistStatus.TOMBSTONED: "withdrawn: they get no keys",
        },
    ),
]


class AllowlistEntry(Shape, frozen=True):
    """An entry of the escrow allowlist."""

    key: Annotated[HexBytes, described("measurement of an instance", "0x" + "ab" * 32)]
    status: AllowlistStatusNumber
    entry: dict[str, Any]


class Allowlist(Shape, frozen=True):
    """A page of the escrow allowlist."""

    entries: list[AllowlistEntry]
    as_of_block: Digits


class ListedCandidate(Shape, Generic[N], frozen=True):
    """A live provider and its ask."""

    provider_id: N
    box_key: Bytes32
    rate_in: N
    rate_out: N
    reliability: Reliable[N] = None
    room: Annotated[
        Omittable[N],
        described(
            "jobs that it may take now, over all models: its capacity less the jobs that it claimed and the open orders"
            " designated to it",
            "4",
        ),
    ] = None


class Candidates(Shape, Generic[N], frozen=True):
    """Every live provider's ask for a model and window, ranked, those without room last; there is no quote."""

    candidates: tuple[ListedCandidate[N], ...]


class TokenDomainShape(Shape, frozen=True):
    """EIP-712 domain of the payment token."""

    name: str
    version: str
    chainId: int  # noqa: N815 - EIP-712 names it so
    verifyingContract: Address  # noqa: N815


class Authorization(Shape, Generic[N, Zero], frozen=True):
    """The payment that the owner signs: an EIP-3009 ReceiveWithAuthorization."""

    domain: TokenDomainShape
    to: Address
    value: N
    valid_after: Zero
    valid_before: N
    nonce: Annotated[Bytes32, described("nonce of the authorization: the job id", WORDS["job_id"].example)]


class QuoteShape(Shape, Generic[N, Zero], frozen=True):
    """The price of an order. All amounts are base units of the payment token."""

    cap: N
    fee_bps: int
    fee: N
    gas_fee: N
    amount: N
    authorization: Authorization[N, Zero]


class Accepts(Shape, frozen=True):
    """A way to pay."""

    scheme: Literal["eip3009"]
    network: str


class QuoteFields(Shape, Generic[N, Zero], frozen=True):
    quote: Annotated[QuoteShape[N, Zero], described("the price")]
    candidates: tuple[ListedCandidate[N], ...]


class FailedCheck(Shape, frozen=True):
    """Failed check of an order, with the error that posting the order would return."""

    message: Annotated[
        str, described("sentence for a person; may change at any time", "signature does not recover to owner")
    ]
    param: Annotated[str | None, described("member at fault, or null", "signature")]
    code: Annotated[str | None, described("the error's code, or null if `param` is enough", "invalid_order_signature")]
    remedy: Annotated[str, described("remedy, for a person", "sign these very values, in the domain of GET /evm/chain")]


class CheckedFields(Shape, Generic[N, Zero], frozen=True):
    ok: Annotated[bool, described("true when no check fails", False)]
    checked: Annotated[
        Literal["order", "submission"],
        described("`submission` with `auth_sig`: payment, container and the post itself are checked, too", "order"),
    ]
    failures: Annotated[tuple[FailedCheck, ...], described("all checks that fail")]
    quote: Annotated[QuoteShape[N, Zero] | None, described("the price, or null where the order has none")]
    candidates: tuple[ListedCandidate[N], ...]


class CheckedShape(CheckedFields[Digits, Literal["0"]], frozen=True):
    """Every check that an order fails, its price, and who would take it now. Nothing was posted or kept."""


class QuoteBodyShape(QuoteFields[Digits, Literal["0"]], frozen=True):
    """The price of an order, who would take it now, and how it may be paid."""

    accepts: list[Accepts]
