"""Facts read from the contracts, one function each. Only this module reads contracts.

The functions call the registries' getters `token`, `providers`, `fees`, `modelEnabled`, `slaAllowed` and `provider`,
the token's `decimals` and `balanceOf`, and each contract's `DOMAIN_SEPARATOR`. Jobs and models come from the events
`ModelSet`, `JobPosted`, `JobClaimed`, `JobSettled`, `JobFailed`, `JobReclaimed` and `JobCancelled`.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from common import abi
from common.artifacts import Artifact, event_topic, load
from common.contract_events import call_data, event_values, order_of, returned_values
from common.keccak import keccak256
from common.messages.jobs import Order
from common.quotes import FeeTerms
from common.receipt import ENDS
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain.node import Chain
from svc.core.orders import SealedOrder
from svc.errors import ChainContradicts, NodeFailed

_JOBS: Final = load("JobRegistry")
_PROVIDERS: Final = load("ProviderRegistry")
_DOMAIN_SEPARATOR: Final = keccak256(b"DOMAIN_SEPARATOR()")[:4]
_DECIMALS: Final = keccak256(b"decimals()")[:4]
_BALANCE: Final = keccak256(b"balanceOf(address)")[:4]
_LOOKBACK_BLOCKS: Final = 300  # where the search for a new post begins


@attrs.frozen(slots=True)
class RegisteredProvider:
    """Provider in the registry."""

    operator: bytes
    box_key: bytes
    listed: bool


@attrs.frozen(slots=True)
class PostedJob:
    """Job as posted. The registry has checked the owner's signature over `order`."""

    owner: bytes
    order: Order
    fees: FeeTerms
    task_cid: str
    payment_signature: bytes
    block: int
    transaction: bytes


@attrs.frozen(slots=True)
class EndedJob:
    """End of a job: the name of the event that ended it, and the event's fields."""

    event: str
    values: dict[str, Any]
    block: int


async def has_code(chain: Chain, address: bytes) -> bool:
    return bool(await chain.code(address))


async def domain_separator(chain: Chain, contract: bytes) -> bytes:
    return _word(await chain.view(contract, _DOMAIN_SEPARATOR), "DOMAIN_SEPARATOR()", contract)


async def token_decimals(chain: Chain, token: bytes) -> int:
    return int.from_bytes(_word(await chain.view(token, _DECIMALS), "decimals()", token), "big")


async def balance(chain: Chain, token: bytes, owner: bytes) -> int:
    data = abi.call(_BALANCE, abi.address(owner))
    return int.from_bytes(_word(await chain.view(token, data), "balanceOf(address)", token), "big")


async def paid_token(chain: Chain, job_registry: bytes) -> bytes:
    """Return the token in which the job registry collects payments."""
    return _address(await chain.view(job_registry, call_data(_JOBS, "token")), "token()", job_registry)


async def provider_registry(chain: Chain, job_registry: bytes) -> bytes:
    """Return the registry of the providers that may claim."""
    return _address(await chain.view(job_registry, call_data(_JOBS, "providers")), "providers()", job_registry)


async def fees(chain: Chain, job_registry: bytes) -> FeeTerms:
    """Return the charges of a job posted now."""
    values = await _returned(chain, _JOBS, job_registry, "fees")
    return FeeTerms(fee_bps=values["feeBps"], gas_fee=values["gasFee"])


async def model_enabled(chain: Chain, job_registry: bytes, model_id: int) -> bool:
    data = call_data(_JOBS, "modelEnabled", abi.uint(model_id))
    return any(_word(await chain.view(job_registry, data), "modelEnabled(uint32)", job_registry))


async def window_allowed(chain: Chain, job_registry: bytes, seconds: int) -> bool:
    data = call_data(_JOBS, "slaAllowed", abi.uint(seconds))
    return any(_word(await chain.view(job_registry, data), "slaAllowed(uint32)", job_registry))


async def model_name(chain: Chain, job_registry: bytes, model_id: int, first: int) -> str | None:
    """Return the latest name of a model, from the events from block `first` on."""
    topics = [event_topic(_JOBS, "ModelSet"), bytes(abi.uint(model_id))]
    logs = await chain.logs(job_registry, topics, first)
    return str(_values("ModelSet", logs[-1])["name"]) if logs else None


async def provider(chain: Chain, registry: bytes, provider_id: int) -> RegisteredProvider:
    values = await _returned(chain, _PROVIDERS, registry, "provider", abi.uint(provider_id))
    return RegisteredProvider(values["operator"], values["boxKey"], values["listed"])


async def posted_job(chain: Chain, job_registry: bytes, job_id: bytes, first: int) -> PostedJob | None:
    """Return the job as posted, from the events from block `first` on."""
    logs = await chain.logs(job_registry, [event_topic(_JOBS, "JobPosted"), job_id], first)
    if not logs:
        return None
    log = logs[-1]  # an id is posted once
    values = _values("JobPosted", log)
    fees = FeeTerms(fee_bps=values["feeBps"], gas_fee=values["gasFee"])
    terms = order_of(values), fees, values["taskCid"], values["paySig"]
    return PostedJob(values["owner"], *terms, log["block"], log["transaction"])


async def claimed_by(chain: Chain, job_registry: bytes, job_id: bytes, first: int) -> int | None:
    """Return the provider that claimed the job."""
    logs = await chain.logs(job_registry, [event_topic(_JOBS, "JobClaimed"), job_id], first)
    return int(_values("JobClaimed", logs[-1])["providerId"]) if logs else None


async def ended_job(chain: Chain, job_registry: bytes, job_id: bytes, first: int) -> EndedJob | None:
    """Return how the job ended, or None if it has not."""
    by_topic = {event_topic(_JOBS, name): name for name in ENDS}
    logs = await chain.logs(job_registry, [None, job_id], first, by_topic)
    name = by_topic.get(logs[-1]["topics"][0]) if logs else None
    return EndedJob(name, _values(name, logs[-1]), logs[-1]["block"]) if name else None


async def _returned(
    chain: Chain, artifact: Artifact, contract: bytes, function: str, *words: abi.Words
) -> dict[str, Any]:
    data = await chain.view(contract, call_data(artifact, function, *words))
    try:
        return returned_values(artifact, function, data)
    except Refused as refusal:
        problem = f"{artifact.name}.{function} at {hex_of(contract)} is missing or incompatible"
        raise NodeFailed(f"{problem}: {refusal.message}", retryable=False) from None


def _values(event: str, log: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return event_values(_JOBS, event, log["topics"], log["data"])
    except Refused as refusal:
        raise NodeFailed(f"a node returned a malformed {event} event: {refusal.message}", retryable=False) from None


def _word(data: bytes, signature: str, contract: bytes) -> bytes:
    if len(data) != 32:
        raise NodeFailed(f"no contract with {signature} at 0x{contract.hex()}", retryable=False)
    return data


def _address(data: bytes, signature: str, contract: bytes) -> bytes:
    return _word(data, signature, contract)[12:]


async def is_posted(chain: Chain, sealed: SealedOrder) -> bool:
    """Return True once the chain has the job. Raises ChainContradicts if another job has its id."""
    registry, name = sealed.market.job_registry, hex_of(sealed.job_id)
    first = max(0, await chain.head() - _LOOKBACK_BLOCKS)
    posted = await posted_job(chain, registry, sealed.job_id, first)
    if posted is None:
        return False
    if posted.owner != sealed.owner:
        raise ChainContradicts(f"owner of job {name}", hex_of(sealed.owner), hex_of(posted.owner))
    if posted.order != sealed.order:
        raise ChainContradicts(f"order of job {name}", sealed.order, posted.order)
    return True
