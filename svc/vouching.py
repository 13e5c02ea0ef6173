"""Holding what a coordinator tells of its market against an address book, what is known of it, and the chain.

    deployment      the address book, else what was told at the first use; the chain: code, signing domains, links
    escrow's key    the pinned keys, else those known; a development escrow's, where allowed, is taken as it comes
    box keys        the chain, else what was told at the first use of the provider
    fees, models    the chain; without it the ceiling bounds what a lie about them can cost

What is told first is remembered, and `tell` says so. What is told otherwise later is refused with both values and the
command that accepts it; a provider's new key is taken at once where the chain confirms it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import attrs
from anyio import to_thread

from common import escrow_evidence
from common.address_book import AddressBook
from common.api.chain import told_book
from common.box import PublicKey
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain import facts
from svc.chain.deployment import check_deployment
from svc.chain.node import Chain
from svc.core.escrow_trust import EscrowTrust, verified_key
from svc.core.known_market import KnownMarket, fingerprint, read_key
from svc.core.market import Market
from svc.core.money import Token
from svc.errors import ChainContradicts, EscrowUntrusted, MarketChanged, NoProvider, OrderRefused
from svc.known_markets import VARIABLE, Change, KnownMarkets
from svc.records import Deployment, EscrowKey, Model, Quote
from svc.wire.json_rpc import NodeRefusal

Tell = Callable[[str], object]

_UNPINNED: Final = "compare it with the operator's address book, which --addresses pins; a change will be refused"


class Voucher(StrEnum):
    """The sources of a fact, as they are shown."""

    SIGNATURE = "your own signature"
    OWNER = "its owner's signature"
    BOOK = "the address book"
    PINNED = "pinned here"
    CHAIN = "the chain"
    KNOWN = "as it was at the first use"
    WORD = "the coordinator's word"


class MarketRemembered(UserWarning):
    """A market, an escrow's key or a provider's was taken on the coordinator's word, and is known from now on."""


@attrs.define(eq=False)
class Vouching:
    """`url` is what the market is known by."""

    url: str
    book: AddressBook | None
    known: KnownMarkets
    escrow: EscrowTrust
    chain: Chain | None
    require_known: bool
    tell: Tell
    _deployment: AddressBook | None = None  # that was checked
    _box_keys: dict[int, PublicKey] = attrs.field(factory=dict)  # that were checked

    async def market(self, answer: Deployment) -> Market:
        """The deployment that may be signed for. Raises MarketChanged, ChainContradicts, NodeFailed, OrderRefused."""
        try:
            told = told_book(answer)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "the coordinator's deployment") from None
        if told == self._deployment:
            return Market.of(told)
        known = await self._read()
        self._require_same(told, known)
        if self.chain is not None:
            await check_deployment(self.chain.later(), told)
        if known is None or known.deployment.differences(told):
            pinned = self.book is not None
            remembered = await self._remember(lambda entry: entry if entry and not pinned else KnownMarket(told))
            self._require_same(told, remembered)  # another command may have been here first
            if not pinned:
                self._tell_first(told)
        self._deployment = told
        return Market.of(told)

    def token(self) -> Token:
        """The payment token of a market that was checked."""
        if self._deployment is None:
            raise AssertionError("the market is read first")
        vouched = self.book is not None or self.chain is not None
        return Token(self._deployment.token_domain.name, self._deployment.payment_token_decimals, vouched)

    def deployment_voucher(self) -> Voucher:
        return Voucher.BOOK if self.book is not None else Voucher.KNOWN

    async def escrow_key(self, answer: EscrowKey) -> PublicKey:
        """The key that open orders may be sealed to, in a market that was checked. Raises EscrowUntrusted."""
        public = verified_key(answer, self.escrow)
        key, kind = public.raw.hex(), answer.evidence.type
        if self.escrow.pinned:
            return public
        known = await self._read()
        keys = {} if known is None else known.escrow_keys
        if key in keys:
            return public
        mock = kind == escrow_evidence.MOCK
        if keys and not (mock and set(keys.values()) == {kind}):
            command = f"svc market accept --coordinator {self.url} --escrow {key}"
            message = f"the escrow of {self.url} tells another key: known {', '.join(keys)}, told {key}"
            raise EscrowUntrusted(f"{message}; if its operator announced it: {command}", code="escrow_changed")
        # A development escrow makes a new key at every start, which proves nothing, and everybody may read: the last
        # one is kept, so that a market which had a mock is not taken for one that has a key to itself.
        await self._change(
            lambda entry: attrs.evolve(entry, escrow_keys={key: kind}) if mock else entry.with_escrow_key(key, kind)
        )
        self._told_once(
            f"{self.url}: remembered its escrow's key {key} ({kind}); whoever holds it can read open orders"
        )
        return public

    async def box_key(self, provider: int, told: str) -> PublicKey:
        """A provider's key to seal to, in a market that was checked. Raises MarketChanged, ChainContradicts."""
        if not 0 < provider < 2**32:
            raise OrderRefused(f"{provider} is no provider's id, and nothing is sealed to its key", param="provider")
        try:
            key = read_key(told, "box_key")
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"provider {provider}") from None
        public = PublicKey(bytes.fromhex(key))
        if self._box_keys.get(provider) == public:
            return public
        if self.chain is not None:
            await self._check_provider(self.chain.later(), provider, public)
        known = await self._read()
        before = None if known is None else known.box_keys.get(provider)
        if before != key:
            if before is not None and self.chain is None:
                command = f"svc market accept --coordinator {self.url} --provider {provider} --box-key 0x{key}"
                message = f"provider {provider} of {self.url} has another key: known 0x{before}, told 0x{key}"
                advice = f"SVC_RPC_URL has the chain confirm it; if you know of the change: {command}"
                raise MarketChanged(f"{message}; {advice}", code="box_key_changed", param="box_key")
            await self._change(lambda entry: entry.with_box_key(provider, key))
            confirmed = "as the chain has it" if self.chain is not None else "on the coordinator's word"
            self._told_once(f"{self.url}: remembered the key of provider {provider}, {confirmed}: 0x{key}")
        self._box_keys[provider] = public
        return public

    async def fees(self, quote: Quote) -> None:
        """Raises ChainContradicts for charges that the chain does not make."""
        if self.chain is None or self._deployment is None:
            return
        charged = await facts.fees(self.chain.later(), self._deployment.job_registry)
        if charged != FeeTerms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee):
            told = f"{quote.fee_bps} basis points and {quote.gas_fee}"
            raise ChainContradicts("fees", told, f"{charged.fee_bps} basis points and {charged.gas_fee}")

    async def model(self, model: Model) -> bool:
        """Checks a model's name by the chain; False where it could not be asked. Raises ChainContradicts."""
        if self.chain is None or self._deployment is None:
            return False
        chain, registry, number = self.chain.later(), self._deployment.job_registry, model.svc.model_id
        if model.svc.enabled and not await facts.model_enabled(chain, registry, number):
            raise ChainContradicts(f"model {model.id}", f"number {number}, which takes orders", "that it takes none")
        first = 0 if self.book is None else self.book.deploy_block
        try:
            name = await facts.model_name(chain, registry, number, first)
        except NodeRefusal:  # a node that keeps no logs so old, or gives them in too small portions
            return False
        if name != model.id:
            raise ChainContradicts(f"model {number}", repr(model.id), repr(name))
        return True

    def _require_same(self, told: AddressBook, known: KnownMarket | None) -> None:
        if self.book is not None:
            if other := self.book.differences(told):
                message = f"{self.url} tells another deployment than the address book: {'; '.join(other)}"
                raise MarketChanged(f"{message}; ask its operator which is right", code="deployment_changed")
            return
        if known is None:
            if self.require_known:
                message = f"{self.url} is no known market, and only such are taken: give its address book (addresses=)"
                raise MarketChanged(message, code="market_unknown", param="addresses")
            return
        if other := known.deployment.differences(told):
            command = f"svc market accept --coordinator {self.url} --deployment {fingerprint(told)}"
            message = f"{self.url} tells another deployment than it did before: {'; '.join(other)}"
            raise MarketChanged(f"{message}; if its operator announced it: {command}", code="deployment_changed")

    async def _check_provider(self, chain: Chain, provider: int, told: PublicKey) -> None:
        if self._deployment is None:
            raise AssertionError("the market is read first")
        found = await facts.provider(chain, self._deployment.provider_registry, provider)
        if not any(found.operator):
            raise ChainContradicts(f"provider {provider}", "that it is registered", "that it is not")
        if found.box_key != told.raw:
            raise ChainContradicts(f"key of provider {provider}", hex_of(told.raw), hex_of(found.box_key))
        if not found.listed:
            raise NoProvider(f"provider {provider} is not listed on the chain, so that it cannot claim")

    def _tell_first(self, told: AddressBook) -> None:
        token = f"{told.token_domain.name} ({hex_of(told.paytoken)}, {told.payment_token_decimals} decimals)"
        contracts = f"chain {told.chain_id}, job registry {hex_of(told.job_registry)}, paid in {token}"
        asked = "" if self.chain is None else "; the chain has these contracts"
        self._told_once(f"first use of {self.url}: remembered {contracts}{asked}; {_UNPINNED}")

    async def _read(self) -> KnownMarket | None:
        try:
            return await to_thread.run_sync(self.known.get, self.url)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        except OSError as error:
            self._forgetful(error)
            return self.known.get(self.url)

    async def _change(self, change: Callable[[KnownMarket], KnownMarket]) -> None:
        """Of a market that was remembered; one that is forgotten meanwhile stays so."""
        await self._remember(lambda entry: None if entry is None else change(entry))

    async def _remember(self, change: Change) -> KnownMarket | None:
        try:
            return await to_thread.run_sync(self.known.change, self.url, change)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        except OSError as error:
            self._forgetful(error)
            return self.known.change(self.url, change)

    def _told_once(self, what: str) -> None:
        """Tells it, unless nothing is kept by the caller's own choice: then every use is a first one."""
        if self.known.path is not None:
            self.tell(what)

    def _forgetful(self, error: OSError) -> None:
        """Keeps nothing from now on: each process takes the coordinator at its word once, and says so."""
        where, why = self.known.path, error.strerror
        self.tell(f"what is told cannot be remembered in {where}: {why}; {VARIABLE} names another file")
        self.known = KnownMarkets()
