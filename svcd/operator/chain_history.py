"""Read a provider's history from the registries' events: amounts of settles, and changes of the reputation."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from common import abi
from common.artifacts import Artifact, event_topic, load_artifact
from common.contract_events import call_data, event_values, returned_values
from common.inclusion.node_values import bytes_from_hex, read_bytes, read_bytes_list, read_quantity
from common.refusal import Refused
from common.scalars import hex_of, read_uint
from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader
from svcd.journal.history import utc_day

_MAX_LOG_RANGE_BLOCKS: Final = 5_000  # reduced if the node rejects it
_INITIAL_REPUTATION: Final = 500


@attrs.frozen(slots=True)
class SettledAmounts:
    """Amounts of one settle, in base units."""

    cost: int
    treasury: int
    refund: int


@attrs.frozen(slots=True)
class ChainHistory:
    """Settles and reputation changes of one provider."""

    settlements: Mapping[bytes, SettledAmounts]  # by job id
    reputation_changes: Mapping[str, int]  # sum of the changes by day

    @classmethod
    async def read(cls, chain: ChainReader, jobs: Sequence[Mapping[str, object]], since: int) -> "ChainHistory":
        """Read the events since the earliest post of `jobs`. Count reputation changes from `since`, in Unix seconds."""
        posts = [read_uint(row["posted_block"], 64, "posted_block") for row in jobs if row.get("posted_block")]
        if not posts:
            return cls({}, {})
        head = read_quantity({"head": await chain.call_node("eth_blockNumber")}, "head")
        provider_topic = hex_of(chain.provider_id.to_bytes(32, "big"))
        blocks = {"first": min(posts), "last": head}
        registry = load_artifact("JobRegistry")
        settled = await _read_logs(
            chain,
            address=chain.address_book.job_registry,
            artifact=registry,
            event="JobSettled",
            topics=[None, provider_topic],
            **blocks,
        )
        found = {
            values["jobId"]: SettledAmounts(values["cost"], values["treasuryShare"], values["refund"])
            for _, values in settled
        }
        providers, address = load_artifact("ProviderRegistry"), chain.address_book.provider_registry
        moved = await _read_logs(
            chain, address=address, artifact=providers, event="StandingSet", topics=[provider_topic], **blocks
        )
        times = await _read_block_times(chain, {block for block, _ in moved})
        by_day: dict[str, int] = defaultdict(int)
        # Events have only the new value, so read the value before the first event.
        before = await _read_reputation(chain, min(posts) - 1)
        for block, values in moved:
            if times[block] >= since and before is not None:
                by_day[utc_day(times[block])] += values["reputation"] - before
            before = values["reputation"]
        return cls(found, dict(by_day))


async def _read_logs(
    chain: ChainReader,
    *,
    address: bytes,
    artifact: Artifact,
    event: str,
    topics: Sequence[str | None],
    first: int,
    last: int,
) -> list[tuple[int, dict[str, Any]]]:
    """Return the events in order. Reduce the range of blocks if the node rejects a range."""
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
            logs = await chain.call_node("eth_getLogs", wanted)
        except Unavailable:
            if span == 1:
                raise
            span = max(1, span // 4)
            continue
        if not isinstance(logs, list):
            raise Refused("the answer to eth_getLogs must be a list of logs")
        for log in logs:
            values = event_values(artifact, event, read_bytes_list(log, "topics", 32), read_bytes(log, "data"))
            found.append((read_quantity(log, "blockNumber"), values))
        at = end + 1
    return found


async def _read_reputation(chain: ChainReader, block: int) -> int | None:
    """Return the reputation at a block, or None if the node has pruned that state."""
    data = call_data(load_artifact("ProviderRegistry"), "provider", abi.uint(chain.provider_id))
    call = {"to": hex_of(chain.address_book.provider_registry), "data": hex_of(data)}
    try:
        returned = bytes_from_hex(await chain.call_node("eth_call", call, hex(max(0, block))), "answer to eth_call")
        found = returned_values(load_artifact("ProviderRegistry"), "provider", returned)
    except (Unavailable, Refused):
        return None
    return int(found["reputation"]) or _INITIAL_REPUTATION


async def _read_block_times(chain: ChainReader, blocks: Iterable[int]) -> dict[int, int]:
    times = {}
    for number in blocks:
        block = await chain.call_node("eth_getBlockByNumber", hex(number), False)
        times[number] = read_quantity(block if isinstance(block, dict) else {}, "timestamp")
    return times
