"""EIP-712 signing domains of one deployment."""

from typing import Generic, Protocol, Self, TypeVar

import attrs

from common.address_book import AddressBook
from common.eip712 import DIGEST_PREFIX, Domain, Message
from common.keccak import keccak256
from common.messages.escrow import HandoverAuth, HandoverKeys, Release
from common.messages.jobs import Cancel, Claim, Fail, Order, Settle
from common.messages.payments import ReceiveWithAuthorization
from common.messages.providers import AskSnapshot, RequestCapacity, SetIdentity
from common.messages.sessions import ResultKey, SvcSession
from common.messages.tabs import TabKey, TabVoucher
from common.secp256k1 import recover_address

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)


@attrs.frozen(slots=True)
class SigningDomain(Generic[M_contra]):
    """EIP-712 domain of some messages, and the domain's hash, which is called the separator.

    The type parameter lists the messages of the domain, so that the type checker rejects other messages.
    """

    domain: Domain
    separator: bytes = attrs.field(init=False, eq=False, repr=False)
    _prefix: bytes = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "separator", self.domain.separator)
        object.__setattr__(self, "_prefix", DIGEST_PREFIX + self.separator)

    def digest(self, message: M_contra) -> bytes:
        """Return the digest that a wallet signs for this message in this domain."""
        return self._packed_digest(message.packed())

    def signer(self, message: M_contra, signature: bytes) -> bytes | None:
        """Return the address that signed this message, or None for an invalid signature."""
        return self.packed_signer(message.packed(), signature)

    def packed_signer(self, packed: bytes, signature: bytes) -> bytes | None:
        """Return the address that signed this packed message, or None for an invalid signature."""
        return recover_address(self._packed_digest(packed), signature)

    def _packed_digest(self, packed: bytes) -> bytes:
        return keccak256(self._prefix + keccak256(packed))


class HasTabDomain(Protocol):
    """Any object with the signing domain of tabs, such as `Domains`."""

    @property
    def tabs(self) -> SigningDomain[TabKey | TabVoucher]: ...


@attrs.frozen(slots=True)
class Domains:
    """All signing domains of one deployment."""

    jobs: SigningDomain[Order | Cancel | Claim | Settle | Fail]
    providers: SigningDomain[SetIdentity | RequestCapacity]
    asks: SigningDomain[AskSnapshot]
    token: SigningDomain[ReceiveWithAuthorization]
    escrow: SigningDomain[Release | HandoverAuth | HandoverKeys]
    session: SigningDomain[SvcSession]
    results: SigningDomain[ResultKey]
    tabs: SigningDomain[TabKey | TabVoucher]

    @classmethod
    def of(cls, book: AddressBook) -> Self:
        chain = book.chain_id
        return cls(
            jobs=SigningDomain(Domain("SVC Jobs", "2", chain, book.job_registry)),
            providers=SigningDomain(Domain("SVC Providers", "2", chain, book.provider_registry)),
            asks=SigningDomain(Domain("SVC Asks", "2", chain, book.ask_registry)),
            token=SigningDomain(Domain(book.token_domain.name, book.token_domain.version, chain, book.paytoken)),
            escrow=SigningDomain(Domain("SVC Escrow", "1", chain)),
            session=SigningDomain(Domain("SVC Session", "1", chain)),
            results=SigningDomain(Domain("SVC Results", "1", chain)),
            tabs=SigningDomain(Domain("SVC Tabs", "1", chain, book.job_registry)),
        )
