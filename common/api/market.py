"""Shapes of the market: the catalogue, providers, asks, floors, the allowlist, and quotes."""

import enum
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from common.api.limits import RELIABILITY_PERIOD_S
from common.api.member_texts import MEMBER_TEXTS
from common.api.shapes import Address, Bytes32, Digits, HexBytes, N, Omittable, Shape, described
from common.api.states import described_enum

ENDPOINT_KEYWORD: Final = "x-svc-endpoint"
"""Key of the endpoint in a model's published schema, because the registry has no field for endpoints."""

# Type of a member that is always 0: the coordinator writes "0", and clients read a number and check it.
Zero = TypeVar("Zero")


class ModelDetails(Shape, Generic[N], frozen=True):
    """Model data that clients need for orders."""

    model_id: N
    enabled: bool
    params_schema: Omittable[dict[str, Any]] = None
    endpoint: Annotated[
        Omittable[str],
        described(
            "OpenAI route whose request and response formats the model's `input` and `output` follow. The admin"
            f" publishes the route in `{ENDPOINT_KEYWORD}` of the schema; absent if the schema has none",
            "/v1/responses",
        ),
    ] = None


class ModelFields(Shape, Generic[N], frozen=True):
    id: Annotated[str, described("name of the model, which may contain slashes", "demo/text-small")]
    owned_by: str
    svc: ModelDetails[N]


class ModelShape(ModelFields[Digits], frozen=True, tag_field="object", tag="model"):
    """A model of the catalogue."""


class ModelAsOf(ModelShape, frozen=True, tag="model"):
    """A model of the catalogue, with the block at which it was read."""

    as_of_block: Digits


class ModelList(Shape, frozen=True):
    """A page of the catalogue."""

    object: Annotated[str, described("kind of the object: `list`", "list")]
    data: list[ModelShape]
    as_of_block: Digits


class Reliability(Shape, Generic[N], frozen=True):
    """Outcomes of a provider's recently claimed jobs. A new provider has low counts."""

    window_secs: Annotated[N, described("period of the counts, in seconds", str(RELIABILITY_PERIOD_S))]
    settled: Annotated[N, described("jobs that the provider settled", "12")]
    failed: Annotated[N, described("jobs that the provider failed", "1")]
    reclaimed: Annotated[N, described("jobs whose window the provider missed", "0")]
    median_secs: Annotated[
        N | None, described("median time from the claim to the settle, in seconds; null if no job settled", "31")
    ]
    units_per_sec: Annotated[
        Omittable[N],
        described("output units charged per second from the claim to the settle; absent if none were charged", "120"),
    ] = None


ReliabilityMember = Annotated[
    Omittable[Reliability[N]],
    described(
        "outcomes of the jobs that the provider claimed in the last seven days, for the model or over all models"
    ),
]


LargestBundleMember = Annotated[
    Omittable[int],
    described("maximum requests in one job of this provider; absent if it accepts no bundles", 500),
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
    reliability: ReliabilityMember[N] = None
    largest_bundle: LargestBundleMember = None


class ProviderShape(ProviderFields[Digits], frozen=True, kw_only=True):
    """A provider in the registry."""

    requested: Digits


class ProviderAsOf(ProviderShape, frozen=True, kw_only=True):
    """A provider, with the block at which it was read."""

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
    reliability: ReliabilityMember[N] = None
    largest_bundle: LargestBundleMember = None


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


_EXAMPLE_RATES: Final = {"low": "90000", "median": "100000", "high": "120000"}


class RateRangeShape(Shape, Generic[N], frozen=True):
    """Rates of settled jobs, in base units for 10^6 units."""

    low: Annotated[N, described("lowest rate", "90000")]
    median: Annotated[N, described("median rate; with two middle values, the lower", "100000")]
    high: Annotated[N, described("highest rate", "120000")]


class PricePoint(Shape, Generic[N], frozen=True):
    """Rates of the settled jobs that were claimed in one period."""

    since: Annotated[N, described("start of the period, in Unix seconds", "1800000000")]
    jobs: Annotated[N, described("number of jobs in the period's sample", "12")]
    rate_in: Annotated[RateRangeShape[N], described("rates for 10^6 input units, in base units", _EXAMPLE_RATES)]
    rate_out: Annotated[RateRangeShape[N], described("rates for 10^6 output units, in base units", _EXAMPLE_RATES)]


class PriceHistoryFields(Shape, Generic[N], frozen=True):
    model_id: N
    bucket_secs: Annotated[N, described("length of each period, in seconds", "3600")]
    prices: Annotated[tuple[PricePoint[N], ...], described("periods with a settled job, oldest first")]


class PriceHistory(PriceHistoryFields[Digits], frozen=True):
    """Rates paid for a model over time, from a sample of its settled jobs."""

    as_of_block: Digits


class SlotCountsShape(Shape, frozen=True):
    """Total slots of the listed providers that polled recently. A slot is room for one job."""

    providers: Annotated[Digits, described("listed providers that polled recently", "2")]
    slots: Annotated[Digits, described("jobs that the registry allows these providers at once", "16")]
    free: Annotated[Digits, described("slots without a claimed job", "12")]
    as_of_block: Digits


class SearchMatch(Shape, frozen=True):
    """Job, owner or provider with an id that starts with the searched digits."""

    kind: Annotated[
        Literal["job", "owner", "provider"],
        described("`job` by its id, `owner` of a job by its address, `provider` by the address of its operator", "job"),
    ]
    id: Annotated[
        str,
        described("id of the job, address of the owner, or number of the provider", MEMBER_TEXTS["job_id"].example),
    ]


class SearchMatches(Shape, frozen=True):
    """Jobs, owners and providers with ids that start with the searched digits."""

    matches: Annotated[tuple[SearchMatch, ...], described("at most eight of each kind, sorted by id")]
    more: Annotated[bool, described("true if more ids match", False)]
    as_of_block: Digits


class BlockTime(Shape, frozen=True):
    """Time of a block."""

    number: Annotated[Digits, described("number of the block", "43")]
    time: Annotated[Digits, described("time of the block, in Unix seconds", "1800000061")]


class BlockTimes(Shape, frozen=True):
    """Times of blocks."""

    blocks: Annotated[tuple[BlockTime, ...], described("blocks whose time is known, in ascending order")]
    as_of_block: Digits


class AllowlistStatus(enum.IntEnum):
    NOT_LISTED = 0
    ALLOWED = 1
    TOMBSTONED = 2


AllowlistStatusNumber = Annotated[
    int,
    described_enum(
        "the market admin's decision about instances with this measurement",
        AllowlistStatus.ALLOWED,
        {
            AllowlistStatus.NOT_LISTED: "no entry, or a removed one",
            AllowlistStatus.ALLOWED: "they may receive escrow keys",
            AllowlistStatus.TOMBSTONED: "withdrawn: they receive no escrow keys",
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
    reliability: ReliabilityMember[N] = None
    room: Annotated[
        Omittable[N],
        described(
            "jobs that the provider may take now, over all models: its capacity minus its claimed jobs and minus the"
            " open orders designated to it",
            "4",
        ),
    ] = None


class Candidates(Shape, Generic[N], frozen=True):
    """Ranked asks of every live provider for a model and window, without a quote. Full providers come last."""

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
    nonce: Annotated[Bytes32, described("nonce of the authorization: the job id", MEMBER_TEXTS["job_id"].example)]


class QuoteShape(Shape, Generic[N, Zero], frozen=True):
    """The price of an order. All amounts are base units of the payment token."""

    cap: N
    fee_bps: int
    fee: N
    gas_fee: N
    amount: N
    authorization: Authorization[N, Zero]


class Accepts(Shape, frozen=True):
    """A payment scheme that the coordinator accepts, and its chain."""

    scheme: Literal["eip3009"]
    network: str


class QuoteFields(Shape, Generic[N, Zero], frozen=True):
    quote: Annotated[QuoteShape[N, Zero], described("the price")]
    candidates: tuple[ListedCandidate[N], ...]


class FailedCheck(Shape, frozen=True):
    """Failed check of an order, with the error that posting the order would return."""

    message: Annotated[
        str, described("human-readable message; may change at any time", "signature does not recover to owner")
    ]
    param: Annotated[str | None, described("field at fault, or null", "signature")]
    code: Annotated[str | None, described("the error's code, or null if `param` is enough", "invalid_order_signature")]
    remedy: Annotated[
        str, described("human-readable remedy", "sign these very values, in the domain of GET /evm/chain")
    ]


class CheckedFields(Shape, Generic[N, Zero], frozen=True):
    ok: Annotated[bool, described("true if no check failed", False)]
    checked: Annotated[
        Literal["order", "submission"],
        described("`submission` if `auth_sig` was sent: the payment, container and post are checked as well", "order"),
    ]
    failures: Annotated[tuple[FailedCheck, ...], described("checks that failed")]
    quote: Annotated[QuoteShape[N, Zero] | None, described("the price, or null if the order is too malformed to price")]
    candidates: tuple[ListedCandidate[N], ...]


class CheckedShape(CheckedFields[Digits, Literal["0"]], frozen=True):
    """Failed checks and price of an order, and providers that would take the order now. Nothing is posted or stored."""


class QuoteBodyShape(QuoteFields[Digits, Literal["0"]], frozen=True):
    """The price of an order, the providers that would take it now, and the accepted payments."""

    accepts: list[Accepts]
