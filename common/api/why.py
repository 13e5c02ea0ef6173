"""Codes and response shape of `GET /v1/jobs/{id}/why`, which explains why providers do not take an open job."""

from collections.abc import Mapping
from typing import Annotated, Final, Generic

from msgspec import Meta

from common.api import shapes
from common.api.shapes import Bytes32, Digits, N, Shape
from common.api.states import JobStateNumber

# Reasons that affect all providers, with the remedy. The response lists them in this order.
JOB_REASON_REMEDIES: Final[Mapping[str, str]] = {
    "model_disabled": "cancel the job; order a model that is `enabled` (GET /v1/models)",
    "escrow_key_lost": "cancel the job; seal and order again",
    "authorization_used": "cancel the job; seal and order again",
    "unfunded": "add to the owner's balance, or cancel other open jobs",
    "held_back": "wait: the job is offered again automatically",
}

# Reasons that affect one provider, with the remedy. The response lists them in this order, permanent ones first.
PROVIDER_REASON_REMEDIES: Final[Mapping[str, str]] = {
    "not_listed": "order from a listed provider",
    "model_not_allowed": "order from a provider that may run the model",
    "designated": "none if you want only the designated provider; otherwise cancel the job and order again",
    "no_ask": "cancel the job; order from a provider with an ask for the model (GET /evm/asks)",
    "window": "cancel the job; order with a window for which the provider has an ask",
    "price": "cancel the job; order at the provider's rates or higher",
    "not_live": "wait until the provider polls again, or cancel the job and order from another provider",
    "full": "wait until one of the provider's jobs has ended",
    "no_free_slots": "wait: each poll of the provider states how many jobs it has room for",
    "behind_others": "wait: older jobs are offered first",
    "leased": "wait: the job is offered to other providers when this offer ends",
}
_VERDICT_CODES: Final = (
    "can_be_taken",
    "leased",
    "nobody_live",
    "kept_away",
    *JOB_REASON_REMEDIES,
    *(code for code in PROVIDER_REASON_REMEDIES if code != "leased"),
    "claimed",
    "settled",
    "cancelled",
    "failed",
    "reclaimed",
    "expired",
)


class WhyReason(Shape, frozen=True):
    """Reason that prevents a provider from taking a job."""

    code: Annotated[
        str,
        shapes.described("code of the reason", "price"),
        Meta(extra_json_schema={"enum": [*JOB_REASON_REMEDIES, *PROVIDER_REASON_REMEDIES]}),
    ]
    said: Annotated[
        str,
        shapes.described(
            "human-readable message; may change at any time",
            "the provider asks 200000 in and 400000 out; the order pays 100000 in and 200000 out",
        ),
    ]
    remedy: Annotated[str, shapes.described("human-readable remedy", PROVIDER_REASON_REMEDIES["price"])]


class WhyProvider(Shape, Generic[N], frozen=True):
    """A provider of the model, and whether it would take the job."""

    provider_id: N
    takes: Annotated[
        bool,
        shapes.described("true if the provider's next poll would return the job and its asks accept the job", False),
    ]
    reasons: Annotated[
        tuple[WhyReason, ...], shapes.described("why the provider will not take the job; empty if `takes` is true")
    ]


class WhyHelp(Shape, Generic[N], frozen=True):
    """Change after which providers would take the job: a new order (cancel this one first) or a higher balance."""

    change: Annotated[
        str,
        shapes.described("what to change", "rates"),
        Meta(extra_json_schema={"enum": ["rates", "window", "designated", "funds"]}),
    ]
    value: Annotated[
        dict[str, N],
        shapes.described(
            "required values of the order's members; for `funds`, the smallest sufficient `balance` of the owner",
            {"rate_in": "200000", "rate_out": "400000"},
        ),
    ]
    providers: Annotated[N, shapes.described("number of `providers` that could take the job after the change", "1")]


class WhyFields(Shape, Generic[N], frozen=True):
    job_id: Bytes32
    state: JobStateNumber
    verdict: Annotated[
        str,
        shapes.described("code of the verdict", "price"),
        Meta(extra_json_schema={"enum": list(_VERDICT_CODES)}),
    ]
    said: Annotated[
        str,
        shapes.described("human-readable verdict; may change at any time", "each of 1 live providers asks more"),
    ]
    providers: Annotated[
        tuple[WhyProvider[N], ...],
        shapes.described(
            "of an open job: up to 50 providers that poll for the model or have an ask for it; those that take the"
            " job come first"
        ),
    ]
    would_help: Annotated[
        tuple[WhyHelp[N], ...], shapes.described("of an open job: changes that would let providers take it")
    ]


class Why(WhyFields[Digits], frozen=True):
    """Explanation of a job's state. For an open job, the reasons that keep each provider from taking it."""

    as_of_block: Digits
