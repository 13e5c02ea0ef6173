"""Situations for a provider under test: the job, its scripted responses, and the expected outcome."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from common.api.states import EndedBecause, JobState
from common.box import PublicKey, SecretKey
from common.cid import cid_of
from tests.conformance.market import MODEL_ID, Heard, Script, error, lost, lost_after, refused
from tests.conformance.provider_market import PROVIDER, SHOWN_AGAIN, ProviderMarket
from tests.conformance.serving import ServedReply

EIGHT: Final = "protocol/guide.md#a-provider-in-eight-calls"
_LOST: Final = "protocol/guide.md#waiting-and-answers-that-were-lost"
_ERRORS: Final = "protocol/contracts.md#contract-errors"
_RETRY_AFTER: Final = 2  # seconds
_MAX_CLAIMS: Final = 3
_SIGNED_IN_WITHIN: Final = 15.0  # seconds, also on a slow machine; providers pause 30 after a refused claim


@attrs.frozen
class Expected:
    """What must have become of a job. `ends`: its state in the end. `never`: ops that must not have been sent. `also`:
    in words, what `further` judges."""

    ends: str  # settled, failed, left
    never: tuple[str, ...] = ()
    also: str = ""
    further: Callable[["Situation", ProviderMarket, str], str | None] | None = None

    def wrong(self, situation: "Situation", market: ProviderMarket, job: str) -> str | None:
        row = market.jobs[job]
        ended = {EndedBecause.SETTLE: "settled", EndedBecause.PROVIDER_FAIL: "failed"}.get(row["ended_because"])
        mine = row["provider_id"] == str(PROVIDER)
        came = ended or ("claimed, not ended" if row["state"] == JobState.CLAIMED and mine else "left")
        sent = [each.name for each in market.heard_of(job, "claim", "settle", "fail")]
        if came != self.ends:
            return f"{came} (sent: {', '.join(sent) or 'nothing'})"
        for op in self.never:
            if op in sent:
                return f"sent {op} (of {', '.join(sent)})"
        if (claims := sent.count("claim")) > _MAX_CLAIMS:
            return f"{claims} claims"
        if self.ends == "settled" and job not in market.results:
            return "a result that does not open: see `results`"
        return None if self.further is None else self.further(situation, market, job)


def never_arose(market: ProviderMarket, job: str, scripted: Mapping[tuple[str, str | None], int]) -> str | None:
    """Why the provider was never put into the situation of this job; None where it was. `scripted`: how many answers
    of each kind were to come otherwise."""
    if not market.offered[job]:
        return f"never offered: its polls told of {market.most_free} free slots at most; try with more, or --patience"
    if not market.was_shown(job):
        return "it did not poll after its claim"
    kept = [name for (name, of), left in scripted.items() if of == job and len(market.scripts[name, of]) == left > 0]
    return f"it sent no {kept[0]}" if kept else None


@attrs.frozen
class Situation:
    """`tried` is the name of its row. `prepare` posts the job and adds its scripts."""

    tried: str
    prepare: Callable[[ProviderMarket, PublicKey], str]
    expected: Expected
    page: str = EIGHT

    @property
    def said(self) -> str:
        never = f", and no {' or '.join(self.expected.never)}" if self.expected.never else ""
        return f"{self.expected.ends}{never}{self.expected.also and f', {self.expected.also}'}"


# --- jobs -----------------------------------------------------------------------------------------------------


def _post(market: ProviderMarket, container: bytes, served: bytes | None = None, **changed: Any) -> str:
    asked = max(market.asks.values(), default=(1_000_000, 2_000_000))
    rates = dict(zip(("rate_in", "rate_out"), map(str, asked), strict=True))
    sla = str(max((sla for model, sla in market.asks if model == MODEL_ID), default=3600))
    cid = str(cid_of(container))
    market.content[cid] = container if served is None else served
    return market.post(container, cid, **{**rates, "sla_secs": sla, "designated": str(PROVIDER), **changed})


def designated(market: ProviderMarket, box: PublicKey, plaintext: bytes | None = None, **changed: Any) -> str:
    plain = market.envelope().encode() if plaintext is None else plaintext
    return _post(market, market.sealed(box, plain), **changed)


def _open(market: ProviderMarket, _: PublicKey) -> str:
    return _post(market, market.sealed(market.escrow.public, market.envelope().encode()), designated="0")


def _scripted(name: str, *scripts: Script | Callable[[ProviderMarket, str], Script]) -> Callable[..., str]:
    def prepare(market: ProviderMarket, box: PublicKey) -> str:
        job = designated(market, box)
        market.script(name, job, *(one if isinstance(one, Script) else one(market, job) for one in scripts))
        return job

    return prepare


def _served_otherwise(market: ProviderMarket, box: PublicKey) -> str:
    sealed = [market.sealed(box, market.envelope(text).encode()) for text in ("one", "two")]
    return _post(market, sealed[0], served=sealed[1])


def _sealed_to_another(market: ProviderMarket, _: PublicKey) -> str:
    return designated(market, SecretKey.generate().public)


def _of_another_owner(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, market.envelope(owner=b"\x5a" * 20).encode())


def _for_another_model(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, market.envelope(model=f"{market.model}-of-another").encode())


def _in_another_spelling(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, market.envelope().encode().replace(b'{"input"', b'{ "input"', 1))


def _too_few_units(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, market.envelope("x" * 4000).encode(), units_in="2")


def _of_many_frames(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, market.envelope("conformance " * 12_000).encode(), units_in="40000")


def _expired(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, expires_at=str(int(market.now()) - 60))


def _for_another(market: ProviderMarket, box: PublicKey) -> str:
    return designated(market, box, designated=str(PROVIDER + 1))


def _shown_again(market: ProviderMarket, box: PublicKey) -> str:
    job = designated(market, box)
    market.shown_again[job] = SHOWN_AGAIN
    return job


def _refused_and(becomes: dict[str, Any] | None, reason: str) -> Callable[[ProviderMarket, str], Script]:
    """A claim that the chain refuses. `becomes` is the job's state by then, None for an unknown job."""

    def script(market: ProviderMarket, job: str) -> Script:
        def meanwhile() -> None:
            market.jobs[job] |= becomes or {}

        return Script(refused(reason), meanwhile=meanwhile)

    return script


def _reclaimed(market: ProviderMarket, job: str) -> Script:
    return Script(refused("NotClaimed"), meanwhile=partial(market.end, job, EndedBecause.RECLAIM))


def _without_its_key(market: ProviderMarket, box: PublicKey) -> str:
    job = _open(market, box)
    market.script("release", job, *[Script(error(400, "invalid_request_error", "unseal_failed"))] * 8)
    return job


def _always(name: str, reply: ServedReply) -> Callable[..., str]:
    """Repeat this response more often than a provider may retry."""
    return _scripted(name, *[Script(reply)] * 50)


# --- further checks -----------------------------------------------------------------------------------------------


def _waited(name: str) -> Callable[[Situation, ProviderMarket, str], str | None]:
    def judge(_: Situation, market: ProviderMarket, job: str) -> str | None:
        sent: list[Heard] = market.heard_of(job, name)
        waited = sent[1].at - sent[0].at if len(sent) > 1 else 0.0
        return None if waited >= _RETRY_AFTER - 0.1 else f"sent again after {waited:.1f} s"

    return judge


def again_at_once(_: Situation, market: ProviderMarket, job: str) -> str | None:
    """Check that the claim was retried right after sign-in. Waiting for the next poll is for refused claims."""
    first, *others = market.heard_of(job, "claim")
    waited = others[0].at - first.at if others else 0.0
    return None if waited <= _SIGNED_IN_WITHIN else f"the claim again after {waited:.0f} s"


def signed_anew(name: str) -> Callable[[Situation, ProviderMarket, str], str | None]:
    """Check that the refused bytes were not sent again. Another check covers the time of ops."""

    def judge(_: Situation, market: ProviderMarket, job: str) -> str | None:
        first, *others = (each.body for each in market.heard_of(job, name))
        if first not in others:
            return None
        return f"the refused {name} again, byte for byte: issued_at {first.get('issued_at')}"

    return judge


def _not_hammered(_: Situation, market: ProviderMarket, job: str) -> str | None:
    sent = len(market.heard_of(job, "claim", "settle", "fail"))
    return None if sent <= 5 else f"{sent} ops"


_BUSY: Final = Script(error(429, "busy", retry_after=str(_RETRY_AFTER)))
_AWAY: Final = Script(error(503, "chain_unreachable", retry_after="1"))
_UNKNOWN_SESSION: Final = Script(error(401, "authentication_error", "invalid_session"))
_TIMED_OUT: Final = Script(error(504, "receipt_timeout", "0x" + "cd" * 32), performs=True)
_TAKEN: Final = {"state": int(JobState.CLAIMED), "provider_id": str(PROVIDER + 1), "claimed_at": "1"}
_SETTLED: Final = Expected("settled", never=("fail",))
_FAILED: Final = Expected("failed", never=("settle",))
_LEFT: Final = Expected("left", never=("settle", "fail"))

ROUNDS: Final[Sequence[Sequence[Situation]]] = (
    (
        Situation("ordinary job", designated, _SETTLED),
        Situation("open job, whose key the escrow has", _open, _SETTLED, "protocol/formats.md#release"),
    ),
    (
        Situation("container of three frames", _of_many_frames, _SETTLED, "protocol/formats.md#frames"),
        Situation("claim whose answer is lost", _scripted("claim", lost_after()), _SETTLED, _LOST),
        Situation("claim that is lost on its way", _scripted("claim", lost()), _SETTLED, _LOST),
        Situation("settle whose answer is lost", _scripted("settle", lost_after()), _SETTLED, _LOST),
        Situation("settle that is lost on its way", _scripted("settle", lost()), _SETTLED, _LOST),
        Situation("settle answered 504, and mined", _scripted("settle", _TIMED_OUT), _SETTLED, _LOST),
        Situation("settle answered 503", _scripted("settle", _AWAY), _SETTLED, _LOST),
        Situation("claim answered 429 with retry-after", _scripted("claim", _BUSY),
                  attrs.evolve(_SETTLED, further=_waited("claim")), _LOST),
        Situation("claim with a session that is forgotten", _scripted("claim", _UNKNOWN_SESSION),
                  attrs.evolve(_SETTLED, also="the claim again after a sign-in", further=again_at_once), _LOST),
        Situation("job that the poll goes on to offer", _shown_again, _SETTLED),
        Situation("bytes that are not the container", _served_otherwise, _FAILED),
        Situation("container sealed to another key", _sealed_to_another, _FAILED),
        Situation("envelope of another owner", _of_another_owner, _FAILED, "protocol/formats.md#envelope-v1"),
        Situation("envelope for another model", _for_another_model, _FAILED, "protocol/formats.md#envelope-v1"),
        Situation("envelope in another spelling", _in_another_spelling, _FAILED, "protocol/formats.md#envelope-v1"),
        Situation("input above the units that are paid", _too_few_units, _FAILED, "protocol/formats.md#units"),
        Situation("fail whose answer is lost", lambda market, box: _lost_fail(market), _FAILED, _LOST),
        Situation("order that has expired", _expired, _LEFT, "protocol/guide.md#times"),
        Situation("job that is designated to another", _for_another, _LEFT),
        Situation("claim that another was quicker with", _scripted("claim", _refused_and(_TAKEN, "NotOpen")), _LEFT,
                  _ERRORS),
        Situation("job that vanished", _scripted("claim", *[Script(refused("UnknownJob"))] * 50), _LEFT, _ERRORS),
        Situation("settle of a job that was reclaimed", _scripted("settle", _reclaimed),
                  Expected("left", further=_not_hammered), _ERRORS),
        Situation("settle refused as stale", _scripted("settle", Script(refused("StaleOp"))),
                  attrs.evolve(_SETTLED, also="signed anew with a new issued_at", further=signed_anew("settle")),
                  "protocol/guide.md#times"),
    ),
    # Last, because a provider may pause claims after these.
    (
        Situation("open job whose key the escrow has not", _without_its_key, _FAILED, "protocol/formats.md#release"),
        Situation("claim refused for want of capacity", _always("claim", refused("AtCapacity")), _LEFT, _ERRORS),
    ),
)  # fmt: skip


def _lost_fail(market: ProviderMarket) -> str:
    job = designated(market, SecretKey.generate().public)
    market.script("fail", job, lost_after())
    return job
