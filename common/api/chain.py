"""Shapes of health, readiness, the deployment and sessions."""

from typing import Annotated, Final, Generic, Literal

from msgspec import Meta

from common.address_book import AddressBook
from common.api.shapes import Address, Digits, N, Omittable, Shape, SignedDigits, described

# Placeholder, because the API does not report the deploy block. No signature depends on the deploy block.
_UNREPORTED_DEPLOY_BLOCK: Final = 0


class HealthShape(Shape, frozen=True):
    """Response of a running server."""

    status: Annotated[Literal["ok"], described("`ok`", "ok")]


class ReadinessFields(Shape, Generic[N], frozen=True):
    ready: bool
    reason: str
    cursor: N | None = None
    head_block: N | None = None
    lag: N | None = None
    code: str | None = None


class ReadinessShape(ReadinessFields[Digits], frozen=True, kw_only=True):
    """Readiness, with the last indexed block and the head of the chain."""

    reason: Annotated[
        Literal["ready", "cold_start", "trailing", "reorg", "chain_unreachable"],
        described(
            "`ready`; `cold_start` (nothing is indexed yet), `trailing` (READY_LAG_BLOCKS or more blocks behind),"
            " `reorg` (the index is being rebuilt) or `chain_unreachable` (the node does not answer)",
            "ready",
        ),
    ]
    lag: SignedDigits | None
    code: Annotated[
        Omittable[str],
        described(
            "other reason why the process is not ready: `stopping`, `no_relayer_role` (the account may not"
            " post or settle), `relayer_absent` (no process has had the relayer role for ten seconds),"
            " `database_unavailable`, `database_read_only` (the database rejects writes), or `task_failing:NAME` (a"
            " background task keeps failing)",
            "no_relayer_role",
        ),
    ] = None


class ContractsShape(Shape, frozen=True):
    """Addresses of the contracts."""

    job_registry: Address
    provider_registry: Address
    ask_registry: Address
    paytoken: Address


class TokenName(Shape, frozen=True):
    """Name and version of the payment token's signing domain."""

    name: str
    version: str


class DeploymentFields(Shape, Generic[N], frozen=True):
    chain_id: int
    contracts: ContractsShape
    decimals: int
    token_domain: TokenName
    gas_price: N
    head_block: N
    block_time_ms: int
    fee_bps: int
    windows: Omittable[tuple[int, ...]] = None


class DeploymentShape(DeploymentFields[Digits], frozen=True, kw_only=True):
    """The market's deployment, and the chain's head and gas price as the coordinator's node reports them."""

    gas_fee: Digits
    gateway_url: Omittable[str] = None


def reported_book(deployment: DeploymentFields[int]) -> AddressBook:
    """Return the address book of the deployment that a coordinator reported. Refuse malformed values."""
    return AddressBook.from_json(
        {
            "chainId": deployment.chain_id,
            "deployBlock": _UNREPORTED_DEPLOY_BLOCK,
            "jobRegistry": deployment.contracts.job_registry,
            "providerRegistry": deployment.contracts.provider_registry,
            "askRegistry": deployment.contracts.ask_registry,
            "paytoken": deployment.contracts.paytoken,
            "paymentTokenDecimals": deployment.decimals,
            "tokenDomain": {"name": deployment.token_domain.name, "version": deployment.token_domain.version},
        }
    )


class Nonce(Shape, frozen=True):
    """A nonce that the wallet signs to open a session."""

    nonce: Annotated[
        str,
        described("text to sign unchanged: 32 hex digits, valid once", "00112233445566778899aabbccddeeff"),
        Meta(extra_json_schema={"pattern": "^[0-9a-f]{32}$"}),
    ]
    expires_at: Annotated[int, described("end of the nonce, in Unix seconds", 1800000300)]
    chain_id: int


class SessionShape(Shape, frozen=True):
    """An open session and its bearer token."""

    token: str
    expires_at: Annotated[int, described("end of the session, in Unix seconds", 1800086400)]
    provider_id: Annotated[Omittable[int], described("id of the provider; only in a provider's session", 2)] = None
