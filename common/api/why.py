"""Codes and response shape of `GET /v1/jobs/{id}/why`, which explains why providers do not take an open job."""

from collections.abc import Mapping
from typing import Annotated, Final, Generic

from msgspec import Meta

from common.api import shapes
from common.api.shapes import Bytes32, Digits, N, Shape
from common.api.states import JobStateNumber

# Reasons that affect all providers, in the order of the response.
OF_THE_JOB: Final[Mapping[str, str]] = {
    "model_disabled": "cancel it; order a model that is `enabled` (GET /v1/models)",
    "escrow_key_lost": "cancel it; seal and order again",
    "authorization_used": "cancel it; seal and order again",
    "unfunded": "add to the owner's balance, or cancel other open jobs",
    "held_back": "wait: it is offered again automatically",
}
# Reasons that affect one provider, in the order of the response: permanent ones first.
OF_A_PROVIDER: Final[Mapping[str, str]] = {
    "not_listed": "order of a listed provider",
    "model_not_allowed": "order of a provider that may run the model",
    "designated": "none for an order to one provider; otherwise cancel it and order again",
    "no_ask": "cancel it; order from a provider with an ask for the model (GET /evm/asks)",
    "window": "cancel it; order with a window that it has an ask for",
    "price": "cancel it; order at its rates, or above",
    "not_live": "wait until it polls again, or cancel and order of another",
    "full": "wait until one of its jobs has ended",
    "no_free_slots": "wait: it says with each poll how many jobs it has room for",
    "behind_others": "wait: older jobs are handed out first",
    "leased": "wait: the job is offered to others when the time of that offer is over",
}
_VERDICTS: Final = (
    "can_be_taken",
    "leased",
    "nobody_live",
    "kept_away",
    *OF_THE_JOB,
    *(code for code in OF_A_PROVIDER if code != "leased"),
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
        shapes.described("the reason's name", "price"),
        Meta(extra_json_schema={"enum": [*OF_THE_JOB, *OF_A_PROVIDER]}),
    ]
    said: Annotated[
        str,
        shapes.described(
            "sentence for a person; may change at any time",
            "it asks 200000 in and 400000 out; the order pays 100000 in and 200000 out",
        ),
    ]
    remedy: Annotated[str, shapes.described("remedy, for a person", OF_A_PROVIDER["price"])]


class WhyProvider(Shape, Generic[N], frozen=True):
    """A provider of the model, and whether it would take the job."""

    provider_id: N
    takes: Annotated[
        bool,
        shapes.described("true when its next poll would be handed the job, and its asks say that it wants it", False),
    ]
    reasons: Annotated[
        tuple[WhyReason, ...], shapes.described("the reasons why it will not take the job; empty when `takes` is true")
    ]


class WhyHelp(Shape, Generic[N], frozen=True):
    """Change after which providers would take the job: another order (cancel this one first) or a higher balance."""

    change: Annotated[
        str,
        shapes.described("what to change", "rates"),
        Meta(extra_json_schema={"enum": ["rates", "window", "designated", "funds"]}),
    ]
    value: Annotated[
        dict[str, N],
        shapes.described(
            "members of the order as they would have to be; for `funds`, the least `balance` of the owner",
            {"rate_in": "200000", "rate_out": "400000"},
        ),
    ]
    providers: Annotated[N, shapes.described("how many of `providers` could take it then", "1")]


class WhyFields(Shape, Generic[N], frozen=True):
    job_id: Bytes32
    state: JobStateNumber
    verdict: Annotated[
        str,
        shapes.described("verdict in one word", "price"),
        Meta(extra_json_schema={"enum": list(_VERDICTS)}),
    ]
    said: Annotated[
        str,
        shapes.described(
            "the same in a sentence, for a person; may change at any time", "each of 1 live providers asks more"
        ),
    ]
    providers: Annotated[
        tuple[WhyProvider[N], ...],
        shapes.described(
            "of an open job: up to 50 providers that poll for its model or have an ask for it, able ones first"
        ),
    ]
    would_help: Annotated[
        tuple[WhyHelp[N], ...], shapes.described("of an open job: changes that would let providers take it")
    ]


class Why(WhyFields[Digits], frozen=True):
    """Why a job is where it is: of an open one, what keeps each provider from it."""

    as_of_block: Digits
