"""Shapes of health, readiness, the deployment, and the sessions that are opened under it."""

from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from common.address_book import AddressBook
from common.wire.shapes import Address, Digits, N, Omittable, Shape, SignedDigits


class HealthShape(Shape, frozen=True):
    status: Literal["ok"]


class ReadinessFields(Shape, Generic[N], frozen=True):
    ready: bool
    reason: str
    cursor: N | None = None
    head_block: N | None = None
    lag: N | None = None
    code: str | None = None


class ReadinessShape(ReadinessFields[Digits], frozen=True, kw_only=True):
    reason: Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"]
    lag: SignedDigits | None
    code: Omittable[Literal["stopping", "no_relayer_role"]] = None


class ContractsShape(Shape, frozen=True):
    job_registry: Address
    provider_registry: Address
    ask_registry: Address
    paytoken: Address


class TokenName(Shape, frozen=True):
    name: str
    version: str


class DeploymentShape(Shape, Generic[N], frozen=True):
    chain_id: int
    contracts: ContractsShape
    decimals: int
    token_domain: TokenName
    gas_price: N
    head_block: N
    block_time_ms: int
    fee_bps: int


_NO_BLOCK: Final = 0  # where a deployment begins is not told: it is no fact that anything is signed for


def told_book(told: DeploymentShape[int]) -> AddressBook:
    """The address book of the deployment that a coordinator tells. Raises Refused for one that is malformed."""
    return AddressBook.of(
        {
            "chainId": told.chain_id,
            "deployBlock": _NO_BLOCK,
            "jobRegistry": told.contracts.job_registry,
            "providerRegistry": told.contracts.provider_registry,
            "askRegistry": told.contracts.ask_registry,
            "paytoken": told.contracts.paytoken,
            "paymentTokenDecimals": told.decimals,
            "tokenDomain": {"name": told.token_domain.name, "version": told.token_domain.version},
        }
    )


class Nonce(Shape, frozen=True):
    nonce: Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{32}$"})]
    expires_at: int
    chain_id: int


class SessionShape(Shape, frozen=True):
    token: str
    expires_at: int
    provider_id: Omittable[int] = None
