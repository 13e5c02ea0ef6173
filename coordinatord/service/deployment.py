"""GET /evm/chain: the deployment, with what the node says of it now."""

import attrs

from common.address_book import AddressBook
from coordinatord.chain.job_registry import JobRegistry, read_terms
from coordinatord.chain.rpc import Call
from coordinatord.chain.views import Reverted, View, decoded, read_many
from coordinatord.trouble import Retryable


@attrs.frozen(slots=True)
class ChainNow:
    gas_price: int
    head_block: int
    fee_bps: int


@attrs.frozen(slots=True)
class Deployment:
    book: AddressBook
    registry: JobRegistry
    block_time_ms: int

    async def now(self) -> ChainNow:
        """One request to the node; Retryable `config_read` when it answers with an error."""
        fees_view = attrs.evolve(self.registry.fees_view(), code="config_read")
        calls: list[View | Call] = [Call("eth_gasPrice"), Call("eth_blockNumber"), fees_view]
        gas_price, head, fees = await read_many(self.registry.rpc, calls, "config_read")
        if isinstance(fees, Reverted):
            raise Retryable("relay_unavailable", "the job registry does not tell its fees", "config_read")
        terms = decoded(fees, read_terms, "config_read")
        return ChainNow(_number(gas_price), _number(head), terms.fee_bps)


def _number(answer: bytes | Reverted) -> int:
    if isinstance(answer, Reverted):
        raise Retryable("relay_unavailable", "the node refuses to tell its state", "config_read")
    return int.from_bytes(answer, "big")
