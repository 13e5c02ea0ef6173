"""Useful work (I13): the market finished work, every unfinished job has a cause, and all work succeeds after the
faults.

A run in which every job fails breaks no other promise. So each kind of work has a minimum count. Each unfinished piece
of work must be explained by a fault active at the time. After the last fault, each kind of work is done again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from tests.soak.timeline import Done, Span, Timeline

_RECOVERY_S: Final = 45.0  # lasting effects of a fault: restarts, windows of a minute
_IDLE_CLAIM: Final = "idle claim"  # claimed by a provider that does not deliver; its window must end first
_IDLE_SECONDS: Final = 120.0
_MIN_MINUTES: Final = 1.0  # shortest run with minimum counts

_COORDINATOR: Final = frozenset(
    {
        *("coordinator_killed", "coordinator_restarted", "killed_before_persist", "killed_after_persist"),
        *("killed_before_broadcast", "killed_after_broadcast", "killed_after_receipt", "killed_before_reply"),
        "descriptors_exhausted",
    }
)
_DATABASE: Final = frozenset(
    {
        *("database_cut", "database_restart", "database_killed", "database_conflicts", "database_full"),
        *("pool_exhausted", "connections_exhausted", "database_read_only", "database_password", "database_login"),
        *("database_silent", "backends_terminated"),
    }
)
# A coordinator without descriptors cannot connect to the store.
_STORE: Final = frozenset({"store_trouble", "store_killed", "wrong_cid", "descriptors_exhausted"})
_PAYER: Final = frozenset({"token_paused", "owner_blacklisted"})
_RPC: Final = frozenset(
    {
        "rpc_error",
        "rpc_hang",
        "rpc_lies",
        "rpc_swallowed",
        "rpc_truncated",
        "rpc_absurd_tips",
        "nodes_disagree",
        "nodes_down",
    }
)
_REORG: Final = frozenset({"reorg", "reorg_beyond_journal"})
_CHAIN: Final = _RPC | _REORG | {"fee_spike", "foreign_transaction", "relayer_empty"}
_CLOCKS: Final = frozenset({"chain_clock", "machine_clock"})
_PROVIDER: Final = frozenset({"provider_killed", "provider_restarted", "descriptors_exhausted"})
_AWAY: Final = _COORDINATOR | _DATABASE | _RPC | _REORG  # the coordinator is down or not ready
_UNSETTLED: Final = _AWAY | _CHAIN | _STORE | _CLOCKS | _PROVIDER | _PAYER | {_IDLE_CLAIM}

# Faults that explain a client's failed outcome, by prefix of the outcome. Outcomes not listed here have no excuse.
EXPLAINED: Final[Mapping[str, frozenset[str]]] = {
    "failed": _UNSETTLED,
    "expired": _UNSETTLED,
    "cancelled": _UNSETTLED,
    "in_progress": _UNSETTLED,
    "queued": _UNSETTLED,
    "job ": _UNSETTLED,
    "tab_": _UNSETTLED,
    "settled without": _UNSETTLED,
    "unreadable": _STORE,
    "not read": _STORE | _AWAY,
    "no_live_provider": _AWAY | _PROVIDER | _CLOCKS,
    "plan_short": _AWAY | _PROVIDER | _CLOCKS,
    "not_ready": _AWAY,
    "503": _AWAY | _CHAIN | _STORE,
    "504": _AWAY | _CHAIN,
    "409": _AWAY | _CHAIN | _CLOCKS | _PAYER,
    "429": _AWAY | _CHAIN,
    "chain_unreachable": _AWAY,
    "outcome_unknown": _AWAY | _CHAIN | _STORE,
    "wait_timed_out": _AWAY | _CHAIN,
    "gateway_unavailable": _STORE,
    "gateway_status": _STORE,
    "receipt_timeout": _AWAY | _CHAIN,
    "relay_queue_timeout": _AWAY | _CHAIN,
    "relay_queue_full": _AWAY | _CHAIN,
    "relayer_funds": _REORG | {"relayer_empty", "fee_spike"},
    "relay_unavailable": _AWAY | _CHAIN,
    "rpc_internal": _AWAY | _CHAIN,
    "rate_limited": _AWAY | _CHAIN,
    "endpoint_refused": _AWAY,
    "nonce_conflict": _CHAIN,
    "job_read": _AWAY,
    "config_read": _AWAY,
    "payer_code_read": _AWAY,
    "registry_floor_read": _AWAY,
    "escrow_unavailable": _AWAY,
    "store_unavailable": _STORE,
    "store_rejected": _STORE,
    "pinner_unavailable": _STORE,
    "object_missing": _STORE,
    "upload_failed": _STORE | _AWAY,
    "connection_failed": _COORDINATOR | _DATABASE,
    "ConnectError": _COORDINATOR,
    "RemoteProtocolError": _COORDINATOR,
    "ReadError": _COORDINATOR,
    "ReadTimeout": _AWAY | _CHAIN | _STORE,
    "no answer": _AWAY,
    "stream ended": _AWAY,
    "not delivered": _AWAY,
    "busy": _AWAY | _CHAIN,
    "invalid_session": _CLOCKS | _DATABASE,
    "invalid_signature": _CLOCKS,
    "StaleOp": _CLOCKS,
    "OrderExpired": _CLOCKS,
    "ExpiryTooFar": _CLOCKS,
    "PaymentRefused": _PAYER | _REORG,
    "NotOpen": _UNSETTLED,
    "NotCancellable": _UNSETTLED,
    "DuplicateJob": _AWAY | _CHAIN,
    "UnknownJob": _AWAY | _CHAIN,
    "NotTheOwner": _AWAY | _CHAIN,  # the job is no longer on the chain
}


@attrs.frozen
class Work:
    """A kind of work. `done` lists its successful outcomes. `floor` is the required number of them per minute, low
    enough for a busy machine."""

    done: frozenset[str]
    floor: float


_OPENED: Final = frozenset({"opened"})
USEFUL: Final[Mapping[str, Work]] = {
    "open job": Work(_OPENED, 1.0),
    "market job": Work(_OPENED, 0.7),
    "designated job": Work(_OPENED, 0.2),
    "job posted twice": Work(_OPENED, 0.3),
    "uploaded job": Work(_OPENED, 0.3),
    "large job": Work(_OPENED, 0.1),
    "cancelled job": Work(frozenset({"cancelled"}), 0.7),
    "batch": Work(frozenset({"completed"}), 0.3),
    "tab": Work(frozenset({"settled"}), 0.3),
    "cancelled batch": Work(frozenset({"cancelled", "completed"}), 0.3),
    "file": Work(frozenset({"read back"}), 1.0),
    "event stream": Work(frozenset({"followed"}), 1.5),
    "webhook test": Work(frozenset({"delivered"}), 0.3),
}


def too_little(timeline: Timeline, minutes: float) -> list[str]:
    """Return the kinds of work below their minimum."""
    if minutes < _MIN_MINUTES:
        return []
    found, outcomes = [], timeline.outcome_counts()
    for what, work in USEFUL.items():
        met = outcomes.get(what, {})
        done = sum(times for outcome, times in met.items() if outcome in work.done)
        least = int(work.floor * minutes)
        if done < least:
            found.append(f"I13: {what}: {done} finished in {minutes:g} minutes, expected at least {least}: {met}")
    return found


def unexplained(timeline: Timeline) -> list[str]:
    """Return unfinished work of this round that no active fault explains."""
    causes = [*timeline.faults, *_idle_claims(timeline.done)]
    return [
        f"I13: a {one.what} ended as {one.outcome!r} {one.at:.0f} s into the run, and no active fault explains it"
        for one in timeline.done
        if (work := USEFUL.get(one.what)) is not None
        and one.outcome not in work.done
        and not _is_explained(one, causes)
    ]


def _is_explained(one: Done, causes: Sequence[Span]) -> bool:
    """Return whether faults explain every part of the outcome. Requests to two coordinators have two parts."""
    return all(_explains(part, one, causes) for part in one.outcome.split(" / "))


def _explains(outcome: str, one: Done, causes: Sequence[Span]) -> bool:
    kinds = next((kinds for begin, kinds in EXPLAINED.items() if outcome.startswith(begin)), frozenset[str]())
    # A response's code is more specific than its status.
    for word in outcome.split()[1:]:
        kinds = EXPLAINED.get(word, kinds)
    began = one.at - one.seconds
    return any(cause.kind in kinds and cause.start <= one.at and cause.end + _RECOVERY_S >= began for cause in causes)


def _idle_claims(done: Iterable[Done]) -> list[Span]:
    return [
        Span(_IDLE_CLAIM, one.at - one.seconds, one.at + _IDLE_SECONDS)
        for one in done
        if one.what == "idle provider" and one.outcome.startswith(("claim 201", "claim 504"))
    ]
