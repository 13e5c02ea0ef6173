"""Decoded events of the three registries.

These are msgspec structs because a busy range creates tens of thousands of them. Creating a frozen attrs instance with
seventeen fields takes as long as decoding its log.
"""

import msgspec


class _Event(msgspec.Struct, frozen=True, gc=False):
    pass


class JobPosted(_Event, frozen=True, gc=False):
    job_id: bytes
    owner: bytes
    model_id: int
    c: bytes
    sla_secs: int
    rate_in: int
    rate_out: int
    units_in: int
    units_out: int
    designated: int
    expires_at: int
    fee_bps: int
    gas_fee: int
    task_cid: str
    pay_sig: bytes


class JobClaimed(_Event, frozen=True, gc=False):
    job_id: bytes
    provider_id: int
    claimed_at: int


class JobSettled(_Event, frozen=True, gc=False):
    job_id: bytes
    provider_id: int
    completion_tok: int
    cost: int
    treasury_share: int
    refund: int
    result_cid: str


class JobCancelled(_Event, frozen=True, gc=False):
    job_id: bytes


class JobFailed(_Event, frozen=True, gc=False):
    job_id: bytes
    provider_id: int


class JobReclaimed(_Event, frozen=True, gc=False):
    job_id: bytes
    provider_id: int


class OrderDiscarded(_Event, frozen=True, gc=False):
    """An owner discarded an unused job id. The id was never posted and never will be."""

    job_id: bytes
    owner: bytes


class PayoutCredited(_Event, frozen=True, gc=False):
    job_id: bytes
    party: bytes
    amount: int


class CreditWithdrawn(_Event, frozen=True, gc=False):
    party: bytes
    amount: int


class ModelSet(_Event, frozen=True, gc=False):
    model_id: int
    name: str
    enabled: bool
    owned_by: str
    params_schema: str


class SlaSet(_Event, frozen=True, gc=False):
    sla_secs: int
    allowed: bool


class FeesSet(_Event, frozen=True, gc=False):
    fee_bps: int
    gas_fee: int


class TreasurySet(_Event, frozen=True, gc=False):
    treasury: bytes


class TokenGasSet(_Event, frozen=True, gc=False):
    token_gas: int


class ProviderRegistered(_Event, frozen=True, gc=False):
    provider_id: int
    operator: bytes


class OperatorProposed(_Event, frozen=True, gc=False):
    provider_id: int
    operator: bytes


class OperatorChanged(_Event, frozen=True, gc=False):
    provider_id: int
    operator: bytes


class ProviderDeregistered(_Event, frozen=True, gc=False):
    provider_id: int


class IdentitySet(_Event, frozen=True, gc=False):
    provider_id: int
    box_key: bytes
    evidence: bytes
    issued_at: int


class CapacityRequested(_Event, frozen=True, gc=False):
    provider_id: int
    n: int
    issued_at: int


class ProviderListed(_Event, frozen=True, gc=False):
    provider_id: int
    listed: bool


class CeilingSet(_Event, frozen=True, gc=False):
    provider_id: int
    ceiling: int


class AllModelsAllowed(_Event, frozen=True, gc=False):
    provider_id: int
    allowed: bool


class ModelAllowed(_Event, frozen=True, gc=False):
    provider_id: int
    model_id: int
    allowed: bool


class StandingSet(_Event, frozen=True, gc=False):
    provider_id: int
    reputation: int
    grace: int


class PointPriceSet(_Event, frozen=True, gc=False):
    point_price: int


class AllowlistSet(_Event, frozen=True, gc=False):
    key: bytes
    status: int
    entry: str


class JobRegistrySet(_Event, frozen=True, gc=False):
    job_registry: bytes


class AskRates(_Event, frozen=True, gc=False):
    model_id: int
    sla: int
    rate_in: int
    rate_out: int


class AsksPublished(_Event, frozen=True, gc=False):
    provider_id: int
    signed_at: int
    quotes: tuple[AskRates, ...]


class RelayerSet(_Event, frozen=True, gc=False):
    relayer: bytes
    allowed: bool


class CallRefused(_Event, frozen=True, gc=False):
    """Refusal of one call in a `relay(bytes[])`. `reason` is the revert data of the call at `index`."""

    index: int
    reason: bytes


JobEvent = (
    JobPosted
    | JobClaimed
    | JobSettled
    | JobCancelled
    | JobFailed
    | JobReclaimed
    | OrderDiscarded
    | PayoutCredited
    | CreditWithdrawn
    | ModelSet
    | SlaSet
    | FeesSet
    | TreasurySet
    | TokenGasSet
)
ProviderEvent = (
    ProviderRegistered
    | OperatorProposed
    | OperatorChanged
    | ProviderDeregistered
    | IdentitySet
    | CapacityRequested
    | ProviderListed
    | CeilingSet
    | AllModelsAllowed
    | ModelAllowed
    | StandingSet
    | PointPriceSet
    | AllowlistSet
    | JobRegistrySet
)
Event = JobEvent | ProviderEvent | AsksPublished | RelayerSet | CallRefused
