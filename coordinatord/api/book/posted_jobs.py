"""Terms that a job was posted with: from the index, otherwise from the chain's logs.

The registry keeps only a hash of a job's terms, so every later call about the job carries the terms again.
"""

from typing import Final

import attrs
import msgspec
import structlog

from common.abi import topic
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.api.book.posted_jobs_sql import posted_order
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.job_registry import JobRegistry, RegisteredJob
from coordinatord.chain.contracts.logs import LogDecoder
from coordinatord.chain.rpc.chain_data import ChainLog
from coordinatord.chain.rpc.client import decode_quantity, to_retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.storage.database.batched_reads import BatchedReads

log = structlog.get_logger(__name__)

_JOB_POSTED_TOPIC: Final = hex_of(
    topic(
        "JobPosted(bytes32,address,uint32,bytes32,uint32,uint128,uint128,uint32,uint32,uint32,uint64,uint16,uint128,"
        "string,bytes)"
    )
)
# Two days, the longest life of a job, are 18 ranges of the default width if a block takes 2 s. The others are a margin.
_MAX_LOG_RANGES: Final = 24


@attrs.frozen(slots=True)
class PostedJobs:
    """Reads the terms of jobs. Settles and fails must not wait for the index, so a job that is not indexed is looked up
    in the logs, newest blocks first. A false log does no harm, because the registry rejects wrong terms, and the job id
    is a hash over the owner."""

    registry: JobRegistry
    decoder: LogDecoder
    first_block: int
    max_range_blocks: int
    indexed: BatchedReads[bytes, RegisteredJob | None]

    async def find(self, job_id: bytes, code: str = "job_read") -> RegisteredJob | None:
        """Return the terms, or None when the chain has no such job. Raise Retryable `not_ready` when neither the index
        nor the latest blocks have the terms of an existing job. `code` is the error code if the chain cannot be
        read."""
        known = await self.indexed.get(job_id)
        if known is not None:
            return known
        if await self.registry.read_job(job_id, code) is None:
            return None
        found = await self._search_logs(job_id)
        if found is None:
            raise Retryable("not_ready", "the index does not know the job yet; try again", retry_after=1)
        log.info("terms read from logs", job=job_id.hex())
        return found

    async def _search_logs(self, job_id: bytes) -> RegisteredJob | None:
        try:
            upto = decode_quantity(await self.registry.rpc.call("eth_blockNumber"))
            width = self.max_range_blocks
            for _ in range(_MAX_LOG_RANGES):
                if upto < self.first_block:
                    return None
                since = max(self.first_block, upto - width + 1)
                try:
                    logs = await self._read_logs(job_id, since, upto)
                except RpcError as error:
                    if error.kind is not RpcErrorKind.RANGE_TOO_WIDE or width == 1:
                        raise
                    width = max(1, width // 4)
                    continue
                if logs:
                    return self._decode_post(logs[0], job_id)
                upto = since - 1
        except RpcError as error:
            raise to_retryable(error, "eth_getLogs") from error
        return None

    async def _read_logs(self, job_id: bytes, first: int, last: int) -> list[ChainLog]:
        query = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": hex_of(self.registry.address),
            "topics": [_JOB_POSTED_TOPIC, hex_of(job_id)],
        }
        return await self.registry.rpc.call_as(list[ChainLog], "eth_getLogs", query)

    def _decode_post(self, log_of_post: ChainLog, job_id: bytes) -> RegisteredJob:
        try:
            event = self.decoder.decode(log_of_post)
        except Refused as broken:
            raise _false_log_error(f"the log of a post is malformed: {broken}") from broken
        if not isinstance(event, contract_events.JobPosted) or event.job_id != job_id:
            raise _false_log_error("the log is of another job")
        return RegisteredJob(posted_order(msgspec.structs.asdict(event)), event.pay_sig)


def _false_log_error(detail: str) -> Retryable:
    return Retryable("chain_unreachable", f"the node returned false data: {detail}")
