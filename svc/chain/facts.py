"""Read the state and events of the contracts. Only this module reads contracts.

The functions call the registries' getters `token`, `providers`, `fees`, `modelEnabled`, `slaAllowed` and `provider`,
the token's `decimals` and `balanceOf`, and each contract's `DOMAIN_SEPARATOR`. Jobs and models come from the events
`ModelSet`, `JobPosted`, `JobClaimed`, `JobSettled`, `JobFailed`, `JobReclaimed` and `JobCancelled`.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import abi
from common.artifacts import Artifact, event_topic, load_artifact
from common.contract_events import call_data, event_values, order_of, returned_values
from common.keccak import keccak256
from common.messages.jobs import Order
from common.quotes import FeeTerms
from common.receipt import END_EVENTS
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain.node import Chain
from svc.core.orders import SealedOrder
from svc.errors import ChainContradicts, NodeFailed

_JOB_REGISTRY: Final = load_artifact("JobRegistry")
_PROVIDER_REGISTRY: Final = load_artifact("ProviderRegistry")
_DOMAIN_SEPARATOR_SELECTOR: Final = keccak256(b"DOMAIN_SEPARATOR()")[:4]
_DECIMALS_SELECTOR: Final = keccak256(b"decimals()")[:4]
_BALANCE_OF_SELECTOR: Final = keccak256(b"balanceOf(address)")[:4]
_POST_SEARCH_BLOCKS: Final = 300  # number of newest blocks in which to look for a new post


@attrs.frozen(slots=True)
class RegisteredProvider:
    """Provider in the registry."""

    operator: bytes
    box_key: bytes
    listed: bool


@attrs.frozen(slots=True)
class PostedJob:
    """Job as its `JobPosted` event shows it. The registry has checked the owner's signature over `order`."""

    owner: bytes
    order: Order
    fee_terms: FeeTerms
    task_cid: str
    payment_signature: bytes
    block: int
    transaction: bytes


@attrs.frozen(slots=True)
class EndedJob:
    """Ended job, with the name and the fields of the event that ended the job."""

    event: str
    values: dict[str, Any]
    block: int


async def has_code(chain: Chain, address: bytes) -> bool:
    return bool(await chain.code(address))


async def read_domain_separator(chain: Chain, contract: bytes) -> bytes:
    return _require_word(await chain.call_view(contract, _DOMAIN_SEPARATOR_SELECTOR), "DOMAIN_SEPARATOR()", contract)


async def read_token_decimals(chain: Chain, token: bytes) -> int:
    return int.from_bytes(_require_word(await chain.call_view(token, _DECIMALS_SELECTOR), "decimals()", token), "big")


async def read_balance(chain: Chain, token: bytes, owner: bytes) -> int:
    data = abi.call_data(_BALANCE_OF_SELECTOR, abi.address(owner))
    return int.from_bytes(_require_word(await chain.call_view(token, data), "balanceOf(address)", token), "big")


async def read_payment_token(chain: Chain, job_registry: bytes) -> bytes:
    """Return the token in which the job registry collects payments."""
    return _address_from_word(
        await chain.call_view(job_registry, call_data(_JOB_REGISTRY, "token")), "token()", job_registry
    )


async def read_provider_registry(chain: Chain, job_registry: bytes) -> bytes:
    """Return the registry of the providers that may claim jobs of this job registry."""
    return _address_from_word(
        await chain.call_view(job_registry, call_data(_JOB_REGISTRY, "providers")), "providers()", job_registry
    )


async def read_fees(chain: Chain, job_registry: bytes) -> FeeTerms:
    """Return the current charges of a job."""
    values = await _call_contract(chain, _JOB_REGISTRY, job_registry, "fees")
    return FeeTerms(fee_bps=values["feeBps"], gas_fee=values["gasFee"])


async def is_model_enabled(chain: Chain, job_registry: bytes, model_id: int) -> bool:
    data = call_data(_JOB_REGISTRY, "modelEnabled", abi.uint(model_id))
    return any(_require_word(await chain.call_view(job_registry, data), "modelEnabled(uint32)", job_registry))


async def is_window_allowed(chain: Chain, job_registry: bytes, seconds: int) -> bool:
    data = call_data(_JOB_REGISTRY, "slaAllowed", abi.uint(seconds))
    return any(_require_word(await chain.call_view(job_registry, data), "slaAllowed(uint32)", job_registry))


async def find_model_name(chain: Chain, job_registry: bytes, model_id: int, first_block: int) -> str | None:
    """Return a model's latest name from its ModelSet events since `first_block`, or None without such an event."""
    topics = [event_topic(_JOB_REGISTRY, "ModelSet"), bytes(abi.uint(model_id))]
    logs = await chain.logs(job_registry, topics, first_block)
    return str(_event_values("ModelSet", logs[-1])["name"]) if logs else None


async def read_provider(chain: Chain, registry: bytes, provider_id: int) -> RegisteredProvider:
    values = await _call_contract(chain, _PROVIDER_REGISTRY, registry, "provider", abi.uint(provider_id))
    return RegisteredProvider(values["operator"], values["boxKey"], values["listed"])


async def find_posted_job(chain: Chain, job_registry: bytes, job_id: bytes, first_block: int) -> PostedJob | None:
    """Search the blocks from `first_block` for a job's JobPosted event. Return the posted job or None."""
    logs = await chain.logs(job_registry, [event_topic(_JOB_REGISTRY, "JobPosted"), job_id], first_block)
    if not logs:
        return None
    log = logs[-1]  # there is only one event, because a job id can be posted only once
    values = _event_values("JobPosted", log)
    fees = FeeTerms(fee_bps=values["feeBps"], gas_fee=values["gasFee"])
    terms = order_of(values), fees, values["taskCid"], values["paySig"]
    return PostedJob(values["owner"], *terms, log["block"], log["transaction"])


async def find_claimer(chain: Chain, job_registry: bytes, job_id: bytes, first_block: int) -> int | None:
    """Return the id of the provider that claimed the job, or None for an unclaimed job."""
    logs = await chain.logs(job_registry, [event_topic(_JOB_REGISTRY, "JobClaimed"), job_id], first_block)
    return int(_event_values("JobClaimed", logs[-1])["providerId"]) if logs else None


async def find_ended_job(chain: Chain, job_registry: bytes, job_id: bytes, first_block: int) -> EndedJob | None:
    """Return the event that ended the job, or None if the job has not ended."""
    by_topic = {event_topic(_JOB_REGISTRY, name): name for name in END_EVENTS}
    logs = await chain.logs(job_registry, [None, job_id], first_block, by_topic)
    name = by_topic.get(logs[-1]["topics"][0]) if logs else None
    return EndedJob(name, _event_values(name, logs[-1]), logs[-1]["block"]) if name else None


async def _call_contract(
    chain: Chain, artifact: Artifact, contract: bytes, function: str, *words: abi.Words
) -> dict[str, Any]:
    data = await chain.call_view(contract, call_data(artifact, function, *words))
    try:
        return returned_values(artifact, function, data)
    except Refused as refusal:
        problem = f"the contract at {hex_of(contract)} has no compatible {artifact.name}.{function}"
        raise NodeFailed(f"{problem}: {refusal.message}", retryable=False) from None


def _event_values(event: str, log: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return event_values(_JOB_REGISTRY, event, log["topics"], log["data"])
    except Refused as refusal:
        raise NodeFailed(f"a node returned a malformed {event} event: {refusal.message}", retryable=False) from None


def _require_word(data: bytes, signature: str, contract: bytes) -> bytes:
    if len(data) != 32:
        raise NodeFailed(f"no contract with {signature} at 0x{contract.hex()}", retryable=False)
    return data


def _address_from_word(data: bytes, signature: str, contract: bytes) -> bytes:
    return _require_word(data, signature, contract)[12:]


async def is_posted(chain: Chain, sealed: SealedOrder) -> bool:
    """Return True if the chain has the job. Raises ChainContradicts if the job has another owner or other terms."""
    registry, name = sealed.market.job_registry, hex_of(sealed.job_id)
    first_block = max(0, await chain.head() - _POST_SEARCH_BLOCKS)
    posted = await find_posted_job(chain, registry, sealed.job_id, first_block)
    if posted is None:
        return False
    if posted.owner != sealed.owner:
        raise ChainContradicts(f"owner of job {name}", hex_of(sealed.owner), hex_of(posted.owner))
    if posted.order != sealed.order:
        raise ChainContradicts(f"order of job {name}", sealed.order, posted.order)
    return True
