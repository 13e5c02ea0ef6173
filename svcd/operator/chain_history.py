"""History of a provider on the chain, by the registries' events: amounts of its settles, changes of its reputation."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from common import abi
from common.artifacts import Artifact, event_topic, load
from common.contract_events import call_data, event_values, returned_values
from common.inclusion.node_values import octets, octets_of, quantity, texts
from common.refusal import Refused
from common.scalars import hex_of, read_uint
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader

# Halved where a node refuses it.
_MAX_LOG_RANGE_BLOCKS: Final = 5_000
_REPUTATION_AT_FIRST: Final = 500


@attrs.frozen(slots=True)
class SettledAmounts:
    cost: int
    treasury: int
    refund: int


@attrs.frozen(slots=True)
class ChainHistory:
    settlements: Mapping[bytes, SettledAmounts]  # by job
    reputation: Mapping[str, int]  # change by day

    @classmethod
    async def of(cls, chain: ChainReader, jobs: Sequence[Mapping[str, object]], since: int) -> "ChainHistory":
        """Read the history from the block of the first post on."""
        posts = [read_uint(row["posted_block"], 64, "posted_block") for row in jobs if row.get("posted_block")]
        if not posts:
            return cls({}, {})
        head = quantity({"head": await chain.ask("eth_blockNumber")}, "head")
        me = hex_of(chain.provider_id.to_bytes(32, "big"))
        blocks = {"first": min(posts), "last": head}
        registry = load("JobRegistry")
        settled = await _logs(
            chain, address=chain.book.job_registry, artifact=registry, event="JobSettled", topics=[None, me], **blocks
        )
        found = {
            values["jobId"]: SettledAmounts(values["cost"], values["treasuryShare"], values["refund"])
            for _, values in settled
        }
        providers, address = load("ProviderRegistry"), chain.book.provider_registry
        moved = await _logs(chain, address=address, artifact=providers, event="StandingSet", topics=[me], **blocks)
        times = await _times(chain, {block for block, _ in moved})
        by_day: dict[str, int] = defaultdict(int)
        # Events have only the new value, so read the value before the first event.
        before = await _reputation_at(chain, min(posts) - 1)
        for block, values in moved:
            if times[block] >= since and before is not None:
                by_day[day_of(times[block])] += values["reputation"] - before
            before = values["reputation"]
        return cls(found, dict(by_day))


async def _logs(
    chain: ChainReader,
    *,
    address: bytes,
    artifact: Artifact,
    event: str,
    topics: Sequence[str | None],
    first: int,
    last: int,
) -> list[tuple[int, dict[str, Any]]]:
    """Return the events in order, read in block ranges that the node accepts."""
    found: list[tuple[int, dict[str, Any]]] = []
    span, at = _MAX_LOG_RANGE_BLOCKS, first
    while at <= last:
        end = min(last, at + span - 1)
        wanted = {
            "address": hex_of(address),
            "topics": [hex_of(event_topic(artifact, event)), *topics],
            "fromBlock": hex(at),
            "toBlock": hex(end),
        }
        try:
            logs = await chain.ask("eth_getLogs", wanted)
        except Unavailable:
            if span == 1:
                raise
            span = max(1, span // 4)
            continue
        if not isinstance(logs, list):
            raise Refused("eth_getLogs must be answered with a list of logs")
        for log in logs:
            values = event_values(artifact, event, texts(log, "topics", 32), octets(log, "data"))
            found.append((quantity(log, "blockNumber"), values))
        at = end + 1
    return found


async def _reputation_at(chain: ChainReader, block: int) -> int | None:
    """Return the reputation at a block, or None if the node has pruned that state."""
    asked = call_data(load("ProviderRegistry"), "provider", abi.uint(chain.provider_id))
    call = {"to": hex_of(chain.book.provider_registry), "data": hex_of(asked)}
    try:
        returned = octets_of(await chain.ask("eth_call", call, hex(max(0, block))), "answer to eth_call")
        found = returned_values(load("ProviderRegistry"), "provider", returned)
    except (Unavailable, Refused):
        return None
    return int(found["reputation"]) or _REPUTATION_AT_FIRST


async def _times(chain: ChainReader, blocks: Iterable[int]) -> dict[int, int]:
    times = {}
    for number in blocks:
        block = await chain.ask("eth_getBlockByNumber", hex(number), False)
        times[number] = quantity(block if isinstance(block, dict) else {}, "timestamp")
    return times


def day_of(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).date().isoformat()
