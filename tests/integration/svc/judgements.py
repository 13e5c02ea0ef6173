"""Judgements of lies: what could a lie in each field of a response gain? A field missing here fails a test.

refused     no lie about it leads to an order
harmless    every lie leads to the honest order, because nothing signed or sealed depends on the field
bounded     some lies are believed but gain nothing: no more money, no other recipient, no other key
unread      the client ignores the field, and the honest responses of this test lack it
"""

from enum import StrEnum
from typing import Final

import attrs


class Verdict(StrEnum):
    REFUSED = "refused"
    HARMLESS = "harmless"
    BOUNDED = "bounded"
    UNREAD = "unread"


@attrs.frozen
class Judged:
    verdict: Verdict
    why: str


def _refused(why: str) -> Judged:
    return Judged(Verdict.REFUSED, why)


def _harmless(why: str) -> Judged:
    return Judged(Verdict.HARMLESS, why)


def _bounded(why: str) -> Judged:
    return Judged(Verdict.BOUNDED, why)


def _unread(why: str) -> Judged:
    return Judged(Verdict.UNREAD, why)


_PINNED: Final = _refused("a fact of the deployment, which is pinned or known")
_KNOWN_KEY: Final = _refused("the key of each provider is known, or read from the chain")
_SHOWN: Final = _harmless("shown, and nothing is decided by it")
_COMPUTED: Final = _refused("computed here from the order that was signed; a quote that says otherwise is refused")
_RATE: Final = _bounded("above the ceiling it is refused; below, it is the owner who pays less")
_EVIDENCE: Final = _refused("key and evidence must belong together, of a kind that is taken")

_NOT_ANNOUNCED: Final = _unread("no provider here announces bundles; one without them fails the job, which is refunded")

_RELIABILITY: Final = {
    **dict.fromkeys((f"reliability.{each}" for each in ("window_secs", "settled", "failed", "reclaimed")), _SHOWN),
    "reliability.median_secs": _bounded(
        "what is neither null nor a number is no answer; else it is shown, and that is all"
    ),
    "reliability.units_per_sec": _unread(
        "nothing settled here; otherwise a false one only changes the size of bundles"
    ),
}

# Responses that affect an order.
JUDGED: Final[dict[str, dict[str, Judged]]] = {
    "GET /evm/chain 200": {
        **dict.fromkeys(("chain_id", "decimals", "token_domain.name", "token_domain.version"), _PINNED),
        **dict.fromkeys(
            (f"contracts.{each}" for each in ("job_registry", "provider_registry", "ask_registry", "paytoken")), _PINNED
        ),
        **dict.fromkeys(("gas_price", "block_time_ms", "fee_bps", "gas_fee"), _SHOWN),
        "windows[]": _bounded(
            "a window that is not told is not ordered; the market refuses those that it does not take"
        ),
        "gateway_url": _unread("gateways are the owner's own setting; what any of them gives is held against its id"),
        "head_block": _harmless("nodes that are behind it are waited for, after the order"),
    },
    "GET /v1/models/{name} 200": {
        "id": _refused("another model than was asked for"),
        "svc.model_id": _bounded("it goes into the order, at no more money; a node tells the number's name"),
        "svc.enabled": _refused("a model that takes no orders is not ordered"),
        "svc.endpoint": _bounded("units of output are left out for embeddings: the order comes to less"),
        "svc.params_schema": _bounded("an input that does not fit it is not sealed; one that fits is the same"),
        **dict.fromkeys(("object", "owned_by", "as_of_block"), _SHOWN),
    },
    "POST /v1/jobs 402": {
        "candidates[].provider_id": _bounded("a known provider has a known key; another id is sealed to the key told"),
        "candidates[].box_key": _KNOWN_KEY,
        "candidates[].rate_in": _RATE,
        "candidates[].rate_out": _RATE,
        "candidates[].room": _bounded("a false one sends the order to another candidate at that one's own ask"),
        **{f"candidates[].{each}": why for each, why in _RELIABILITY.items()},
        **dict.fromkeys((f"quote.{each}" for each in ("cap", "fee_bps", "fee", "gas_fee", "amount")), _COMPUTED),
        **dict.fromkeys(
            (f"quote.authorization.{each}" for each in ("to", "value", "valid_after", "valid_before", "nonce")),
            _COMPUTED,
        ),
        **dict.fromkeys(
            (f"quote.authorization.domain.{each}" for each in ("name", "version", "chainId", "verifyingContract")),
            _COMPUTED,
        ),
        "accepts[].scheme": _SHOWN,
        "accepts[].network": _SHOWN,
    },
    "POST /v1/jobs 201": {
        "job_id": _harmless("the id is made here, before the order is sent"),
        "task_cid": _SHOWN,
        "tx_hash": _SHOWN,
    },
    "GET /evm/providers/{id} 200": {
        "provider_id": _refused("another provider than was asked for"),
        "box_key": _KNOWN_KEY,
        "listed": _harmless("an order for a provider that is not listed expires; a node tells the listing"),
        "allowed_models[]": _unread("the registry refuses the claim"),
        **dict.fromkeys(
            ("operator", "evidence", "reputation", "allow_all_models", "capacity", "requested", "active_jobs"), _SHOWN
        ),
        **_RELIABILITY,
        "largest_bundle": _NOT_ANNOUNCED,
        "as_of_block": _SHOWN,
    },
    "GET /evm/asks 200": {
        **dict.fromkeys(
            (f"asks[].{each}" for each in ("provider_id", "model_id", "sla", "rate_in", "rate_out")),
            _bounded("only decides the size of bundles; the plan has the rates"),
        ),
        "asks[].largest_bundle": _NOT_ANNOUNCED,
        **{f"asks[].{each}": why for each, why in _RELIABILITY.items()},
        "as_of_block": _SHOWN,
    },
    "GET /key 200": {
        "escrow_public_key": _EVIDENCE,
        "evidence.type": _EVIDENCE,
        "evidence.report_data": _EVIDENCE,
        "evidence.debug": _EVIDENCE,
        "evidence.release": _SHOWN,
        "issued_at": _SHOWN,
        **dict.fromkeys(
            (f"evidence.{each}" for each in ("measurement", "tcb", "quote")), _unread("told by other kinds of evidence")
        ),
    },
    "GET /auth/nonce 200": {
        "nonce": _refused("signed in the session's own domain: nothing else takes that signature"),
        "chain_id": _harmless("the session's domain is that of the pinned deployment"),
        "expires_at": _SHOWN,
    },
    "POST /auth/session 200": {
        "token": _refused("a token that is none is refused by the coordinator itself"),
        "expires_at": _harmless("another session is signed for, in the same domain"),
        "provider_id": _unread("told to providers alone"),
    },
    "POST /v1/batches 402": {
        "plan[].model_id": _refused("a plan for other models has no place for the lines"),
        "plan[].lines": _harmless("the shares say how many lines there are"),
        "plan[].allocation[].provider_id": _bounded("as of a candidate"),
        "plan[].allocation[].box_key": _KNOWN_KEY,
        "plan[].allocation[].rate_in": _RATE,
        "plan[].allocation[].rate_out": _RATE,
        "plan[].allocation[].lines": _bounded("more than are wanted are not used, fewer are refused"),
    },
}

# Responses read after the order is signed and sealed, or by commands that sign and seal nothing.
AFTER: Final[dict[str, str]] = {
    "GET /readyz 200": "svc doctor shows it",
    "GET /v1/models 200": "listed",
    "GET /v1/jobs/{id} 200": "a job that was ordered: its result opens with its owner's key, for its own id",
    "GET /v1/jobs/{id}/progress 200": "the result that it names opens with its owner's key, for its own id",
    "GET /v1/jobs/{id}/why 200": "shown",
    "POST /v1/jobs/check 200": "shown; what was signed for it pays for nothing",
    "POST /v1/jobs/{id}/cancel 200": "shown; what was signed names the job, in the registry's domain",
    "POST /v1/files 200": "the content id of a large container is sent with an order whose amount is fixed by then",
    "GET /v1/files/{id} 200": "shown",
    "GET /evm/jobs 200": "listed",
    "GET /evm/jobs/summary 200": "shown",
    "GET /evm/jobs/{job_id} 200": "svc verify holds it against the chain",
    "GET /evm/asks/floors 200": "listed",
    "GET /evm/providers 200": "listed; svc doctor holds keys against the chain",
    "GET /evm/allowlist 200": "listed",
    "POST /v1/tabs/messages 200": (
        "a false refusal makes the client repeat frames or reconnect, and a concealed one makes it wait: frames are"
        " sealed, vouchers acknowledge checked answers only, and all of them together are bounded by the order's cap"
    ),
    "POST /v1/batches 200": "a batch whose lines are paid for by then",
    "GET /v1/batches 200": "listed",
    "GET /v1/batches/{id} 200": "shown; results open with their owner's key",
    "POST /v1/batches/{id}/cancel 200": "shown",
    "POST /v1/webhooks 200": "shown; the secret verifies messages, which are hints: who acts on one reads the job",
    "GET /v1/webhooks 200": "listed",
    "DELETE /v1/webhooks/{id} 200": "its members are not read",
    "POST /v1/webhooks/{id}/test 200": "shown",
}

# Responses for providers, peers, operators and the market's page.
NEVER_ASKED: Final[frozenset[str]] = frozenset(
    {
        "GET /healthz 200",
        "GET /evm/models 200",
        "GET /evm/models/{id}/prices 200",
        "GET /evm/jobs/counts 200",
        "GET /evm/slots 200",
        "GET /evm/search 200",
        "GET /evm/blocks 200",
        "GET /evm/jobs/{job_id}/transactions 200",
        "POST /evm/ops 201",
        "POST /evm/simulate/claim 200",
        "PUT /evm/asks 200",
        "POST /release 200",
        "POST /handover 200",
    }
)
