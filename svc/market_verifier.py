"""Check a coordinator's reports about its market against an address book, known markets and the chain.

    report          checked against
    deployment      the address book, or the first use; with nodes, also the code, signing domains and registries
    escrow's key    the pinned keys, or the known keys; an allowed development escrow may change its key
    box keys        the chain, or the first use of the provider
    fees, models    the chain; without nodes, unchecked, so a false report can cost up to the ceiling

At the first use, the client remembers the reported value and calls `report`. Later, it rejects a different value with
an error that shows both values and the command that accepts the new value. A provider's new key is accepted if the
chain confirms it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import attrs
from anyio import to_thread

from common import escrow_evidence
from common.address_book import AddressBook
from common.api.chain import reported_book
from common.box import PublicKey
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of
from svc.chain import facts
from svc.chain.deployment import check_deployment
from svc.chain.node import Chain
from svc.core.escrow_trust import EscrowTrust, verify_escrow_key
from svc.core.known_market import KnownMarket, deployment_fingerprint, read_key
from svc.core.market import VerifiedMarket
from svc.core.money import Token
from svc.errors import ChainContradicts, EscrowUntrusted, MarketChanged, NoProvider, OrderRefused
from svc.known_markets import PATH_VARIABLE, KnownMarkets, UpdateMarket
from svc.records import Deployment, EscrowKey, Model, Quote
from svc.wire.json_rpc import NodeRefusal

Report = Callable[[str], object]

_UNPINNED_ADVICE: Final = "compare these with the operator's address book (--addresses); later changes are rejected"


class VerificationSource(StrEnum):
    """Source that verifies a fact. The values are shown to the user."""

    SIGNATURE = "your own signature"
    OWNER = "the owner's signature"
    BOOK = "the address book"
    PINNED = "a pinned key"
    CHAIN = "the chain"
    KNOWN = "remembered from the first use"
    UNVERIFIED = "unverified"


class MarketRemembered(UserWarning):
    """Warning: an unverified market, escrow key or provider key was accepted and remembered."""


@attrs.define(eq=False)
class MarketVerifier:
    """Checks the coordinator's reports about one market, which `url` identifies."""

    url: str
    address_book: AddressBook | None
    known_markets: KnownMarkets
    escrow: EscrowTrust
    chain: Chain | None
    require_known: bool
    report: Report
    _deployment: AddressBook | None = None  # set once verified
    _box_keys: dict[int, PublicKey] = attrs.field(factory=dict)  # only verified keys

    async def verify_deployment(self, answer: Deployment) -> VerifiedMarket:
        """Verify a deployment, and return the market to sign orders for.

        Raises MarketChanged, ChainContradicts, NodeFailed and OrderRefused.
        """
        try:
            reported = reported_book(answer)
        except Refused as refusal:
            raise OrderRefused.because(refusal, "the coordinator's deployment") from None
        if reported == self._deployment:
            return VerifiedMarket.of(reported)
        known = await self._read_known()
        self._require_same_deployment(reported, known)
        if self.chain is not None:
            await check_deployment(self.chain.new_snapshot(), reported)
        if known is None or known.deployment.differences(reported):
            pinned = self.address_book is not None
            remembered = await self._remember(lambda entry: entry if entry and not pinned else KnownMarket(reported))
            self._require_same_deployment(reported, remembered)  # another command may have remembered other facts first
            if not pinned:
                self._report_first_use(reported)
        self._deployment = reported
        return VerifiedMarket.of(reported)

    def token(self) -> Token:
        """Return the payment token of a verified market."""
        if self._deployment is None:
            raise AssertionError("the deployment must be verified before its token is read")
        decimals_verified = self.address_book is not None or self.chain is not None
        return Token(self._deployment.token_domain.name, self._deployment.payment_token_decimals, decimals_verified)

    def deployment_source(self) -> VerificationSource:
        return VerificationSource.BOOK if self.address_book is not None else VerificationSource.KNOWN

    async def verify_escrow_key(self, answer: EscrowKey) -> PublicKey:
        """Verify the escrow's key. The market must already be verified. Raises EscrowUntrusted."""
        public = verify_escrow_key(answer, self.escrow)
        key, kind = public.raw.hex(), answer.evidence.type
        if self.escrow.pinned_keys:
            return public
        known = await self._read_known()
        keys = {} if known is None else known.escrow_keys
        if key in keys:
            return public
        mock = kind == escrow_evidence.MOCK_EVIDENCE_TYPE
        if keys and not (mock and set(keys.values()) == {kind}):
            accept_command = f"svc market accept --coordinator {self.url} --escrow {key}"
            message = f"the escrow key of {self.url} changed: known {', '.join(keys)}, reported {key}"
            raise EscrowUntrusted(
                f"{message}; if the operator announced the new key, accept it with: {accept_command}",
                code="escrow_changed",
            )
        # A development escrow creates a new key at every start. Remember only the newest key.
        await self._change_known(
            lambda entry: attrs.evolve(entry, escrow_keys={key: kind}) if mock else entry.with_escrow_key(key, kind)
        )
        self._report(f"{self.url}: remembered the escrow key {key} ({kind}); its operator can read open orders")
        return public

    async def verify_box_key(self, provider: int, reported: str) -> PublicKey:
        """Verify a provider's key. The market must already be verified. Raises MarketChanged and ChainContradicts."""
        if not 0 < provider < 2**32:
            raise OrderRefused(f"{provider} is not a valid provider id", param="provider")
        try:
            key = read_key(reported, "box_key")
        except Refused as refusal:
            raise OrderRefused.because(refusal, f"provider {provider}") from None
        public = PublicKey(bytes.fromhex(key))
        if self._box_keys.get(provider) == public:
            return public
        if self.chain is not None:
            await self._check_provider(self.chain.new_snapshot(), provider, public)
        known = await self._read_known()
        known_key = None if known is None else known.box_keys.get(provider)
        if known_key != key:
            if known_key is not None and self.chain is None:
                accept_command = f"svc market accept --coordinator {self.url} --provider {provider} --box-key 0x{key}"
                message = f"the key of provider {provider} of {self.url} changed: known 0x{known_key}, reported 0x{key}"
                advice = f"confirm the new key on the chain with SVC_RPC_URL, or accept the key with: {accept_command}"
                raise MarketChanged(f"{message}; {advice}", code="box_key_changed", param="box_key")
            await self._change_known(lambda entry: entry.with_box_key(provider, key))
            confirmed = "confirmed by the chain" if self.chain is not None else "unverified"
            self._report(f"{self.url}: remembered the key of provider {provider}, {confirmed}: 0x{key}")
        self._box_keys[provider] = public
        return public

    async def check_fees(self, quote: Quote) -> None:
        """Compare the charges of a quote with the chain. Raises ChainContradicts."""
        if self.chain is None or self._deployment is None:
            return
        charged = await facts.read_fees(self.chain.new_snapshot(), self._deployment.job_registry)
        if charged != FeeTerms(fee_bps=quote.fee_bps, gas_fee=quote.gas_fee):
            reported = f"{quote.fee_bps} basis points and {quote.gas_fee} base units"
            raise ChainContradicts("fees", reported, f"{charged.fee_bps} basis points and {charged.gas_fee} base units")

    async def check_model(self, model: Model) -> bool:
        """Compare a model's name with the chain. Return False if this is not possible. Raises ChainContradicts."""
        if self.chain is None or self._deployment is None:
            return False
        chain, registry, number = self.chain.new_snapshot(), self._deployment.job_registry, model.svc.model_id
        if model.svc.enabled and not await facts.is_model_enabled(chain, registry, number):
            raise ChainContradicts(f"model {model.id}", f"number {number}, enabled", "not enabled")
        first = 0 if self.address_book is None else self.address_book.deploy_block
        try:
            name = await facts.find_model_name(chain, registry, number, first)
        except NodeRefusal:  # the node has no old logs, or allows only small block ranges
            return False
        if name != model.id:
            raise ChainContradicts(f"model {number}", repr(model.id), repr(name))
        return True

    def _require_same_deployment(self, reported: AddressBook, known: KnownMarket | None) -> None:
        if self.address_book is not None:
            if changes := self.address_book.differences(reported):
                message = f"the deployment of {self.url} differs from the address book: {'; '.join(changes)}"
                raise MarketChanged(f"{message}; ask the operator which is right", code="deployment_changed")
            return
        if known is None:
            if self.require_known:
                message = f"{self.url} is not a known market: set its address book (addresses=)"
                raise MarketChanged(message, code="market_unknown", param="addresses")
            return
        if changes := known.deployment.differences(reported):
            accept_command = (
                f"svc market accept --coordinator {self.url} --deployment {deployment_fingerprint(reported)}"
            )
            message = f"the deployment of {self.url} changed: {'; '.join(changes)}"
            raise MarketChanged(
                f"{message}; if the operator announced the change, accept it with: {accept_command}",
                code="deployment_changed",
            )

    async def _check_provider(self, chain: Chain, provider: int, reported: PublicKey) -> None:
        if self._deployment is None:
            raise AssertionError("the deployment must be verified before its providers are checked")
        on_chain = await facts.read_provider(chain, self._deployment.provider_registry, provider)
        if not any(on_chain.operator):
            raise ChainContradicts(f"provider {provider}", "registered", "not registered")
        if on_chain.box_key != reported.raw:
            raise ChainContradicts(f"key of provider {provider}", hex_of(reported.raw), hex_of(on_chain.box_key))
        if not on_chain.listed:
            raise NoProvider(f"provider {provider} is not listed on the chain and cannot claim")

    def _report_first_use(self, reported: AddressBook) -> None:
        token = (
            f"{reported.token_domain.name} ({hex_of(reported.paytoken)}, {reported.payment_token_decimals} decimals)"
        )
        contracts = f"chain {reported.chain_id}, job registry {hex_of(reported.job_registry)}, paid in {token}"
        chain_note = "" if self.chain is None else "; verified on the chain"
        self._report(f"first use of {self.url}: remembered {contracts}{chain_note}; {_UNPINNED_ADVICE}")

    async def _read_known(self) -> KnownMarket | None:
        try:
            return await to_thread.run_sync(self.known_markets.get, self.url)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        except OSError as error:
            self._stop_remembering(error)
            return self.known_markets.get(self.url)

    async def _change_known(self, update: Callable[[KnownMarket], KnownMarket]) -> None:
        """Change a remembered market, unless another command has removed the market."""
        await self._remember(lambda entry: None if entry is None else update(entry))

    async def _remember(self, update: UpdateMarket) -> KnownMarket | None:
        try:
            return await to_thread.run_sync(self.known_markets.change, self.url, update)
        except Refused as refusal:
            raise OrderRefused.because(refusal) from None
        except OSError as error:
            self._stop_remembering(error)
            return self.known_markets.change(self.url, update)

    def _report(self, message: str) -> None:
        """Report a remembered fact. Without a file of known markets, every use is a first use and is not reported."""
        if self.known_markets.path is not None:
            self.report(message)

    def _stop_remembering(self, error: OSError) -> None:
        """Report that the file of known markets cannot be used, and from now on store known markets in memory."""
        path, reason = self.known_markets.path, error.strerror
        self.report(f"cannot store known markets in {path}: {reason}; set {PATH_VARIABLE} to another file")
        self.known_markets = KnownMarkets()
