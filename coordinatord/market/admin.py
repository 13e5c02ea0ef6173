"""Administration of a market: the calls of each action, compared with the state of the chain.

Calls that would change nothing are left out. An action with no calls left is rejected.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from web3 import Web3

from common.address_book import AddressBook
from common.daemon.process import Fatal
from coordinatord.market.admin_events import admin_events
from coordinatord.market.contracts import ZERO, Contract, ContractCall
from coordinatord.market.deployment import JOBS, PROVIDERS, REGISTRIES
from coordinatord.market.reading import STATUSES, contracts_of, provider
from coordinatord.market.terms import ModelTerms


@attrs.frozen(slots=True)
class Action:
    """The calls of one action. `by`: the account that may send them. `already`: reason when there are no calls."""

    by: str
    calls: tuple[ContractCall, ...]
    already: str = ""


@attrs.frozen(slots=True)
class Admin:
    """Prepares the calls of each action from the state of the chain. It sends no transaction."""

    node: Web3
    book: AddressBook
    span: int

    def list_provider(self, provider_id: int, listed: bool) -> Action:
        state = self._provider(provider_id)
        words = f"{'list' if listed else 'delist'} provider {provider_id} ({state['operator']})"
        return self._one(PROVIDERS, words, state["listed"] == listed, "setListed", provider_id, listed)

    def set_ceiling(self, provider_id: int, ceiling: int) -> Action:
        state = self._provider(provider_id)
        words = f"let provider {provider_id} run {ceiling} jobs at once at most"
        return self._one(PROVIDERS, words, state["ceiling"] == ceiling, "setCeiling", provider_id, ceiling)

    def allow_all_models(self, provider_id: int, allowed: bool) -> Action:
        state = self._provider(provider_id)
        words = f"provider {provider_id}: {'every model' if allowed else 'only models allowed one by one'}"
        return self._one(
            PROVIDERS, words, state["allowAllModels"] == allowed, "setAllowAllModels", provider_id, allowed
        )

    def allow_model(self, provider_id: int, model_id: int, allowed: bool) -> Action:
        if self._provider(provider_id)["allowAllModels"]:
            raise Fatal(f"provider {provider_id} may run every model: `allow-all-models {provider_id} no` comes first")
        now = self._read(PROVIDERS, "modelAllowed", provider_id, model_id)
        words = f"{'allow' if allowed else 'forbid'} model {model_id} to provider {provider_id}"
        return self._one(PROVIDERS, words, now == allowed, "setModelAllowed", provider_id, model_id, allowed)

    def set_allowlist(self, key: bytes, status: int, entry: str) -> Action:
        now = self._read(PROVIDERS, "allowlistStatus", key)
        words = f"escrow allowlist: 0x{key.hex()} {STATUSES[status]}{f' ({entry})' if entry else ''}"
        # An entry is only in events, so it may be published again.
        return self._one(PROVIDERS, words, now == status and not entry, "setAllowlist", key, status, entry)

    def set_model(self, model: ModelTerms, enabled: bool) -> Action:
        latest = self._model(model.model_id)
        same = latest == model and self._read(JOBS, "modelEnabled", model.model_id) == enabled
        words = f"model {model.model_id} {model.name}, {'enabled' if enabled else 'disabled'}"
        return self._set_model(words, same, model, enabled)

    def enable_model(self, model_id: int, enabled: bool) -> Action:
        model = self._model(model_id)
        if model is None:
            raise Fatal(f"model {model_id} was never set: `set-model {model_id} --name …` comes first")
        now = self._read(JOBS, "modelEnabled", model_id)
        return self._set_model(
            f"{'enable' if enabled else 'disable'} model {model_id} {model.name}", now == enabled, model, enabled
        )

    def allow_sla(self, seconds: int, allowed: bool) -> Action:
        now = self._read(JOBS, "slaAllowed", seconds)
        return self._one(
            JOBS,
            f"{'allow' if allowed else 'forbid'} windows of {seconds} s",
            now == allowed,
            "setSla",
            seconds,
            allowed,
        )

    def set_fees(self, fee_bps: int, gas_fee: int) -> Action:
        now, max_gas_fee = tuple(self._read(JOBS, "fees")), self._read(JOBS, "maxGasFee")
        if gas_fee > max_gas_fee:
            raise Fatal(f"the gas fee must be at most {max_gas_fee}, the fixed limit of this registry")
        words = f"fees of {fee_bps} bps and {gas_fee} for jobs posted from now on"
        return self._one(JOBS, words, now == (fee_bps, gas_fee), "setFees", fee_bps, gas_fee)

    def set_token_gas(self, gas: int) -> Action:
        now = self._read(JOBS, "tokenGas")
        return self._one(JOBS, f"let a call of the token use {gas} gas", now == gas, "setTokenGas", gas)

    def set_point_price(self, price: int) -> Action:
        now = self._read(PROVIDERS, "pointPrice")
        words = f"a point of reputation for each {price} that the treasury gets"
        return self._one(PROVIDERS, words, now == price, "setPointPrice", price)

    def set_treasury(self, treasury: str) -> Action:
        if treasury in {self._contracts()[name].address for name in REGISTRIES} | {self._read(JOBS, "token")}:
            raise Fatal(f"treasury must not be a registry or the token: what is paid to {treasury} is lost")
        now = self._read(JOBS, "treasury")
        return self._one(JOBS, f"treasury {treasury}", now == treasury, "setTreasury", treasury)

    def set_relayer(self, relayer: str, allowed: bool) -> Action:
        words = f"{'grant' if allowed else 'revoke'} relayer {relayer}"
        return self._everywhere(
            words,
            lambda contract: bool(contract.read(self.node, "isRelayer", relayer)) == allowed,
            "setRelayer",
            relayer,
            allowed,
        )

    def pause(self, paused: bool) -> Action:
        now = self._read(JOBS, "paused")
        words = "stop posts and claims" if paused else "let posts and claims go on"
        return self._one(JOBS, words, now == paused, "pause" if paused else "unpause")

    def transfer_ownership(self, owner: str) -> Action:
        def already(contract: Contract) -> bool:
            pending = contract.read(self.node, "pendingOwner")
            return bool(owner == pending or (pending == ZERO and owner == contract.read(self.node, "owner")))

        return self._everywhere(f"offer ownership to {owner}", already, "transferOwnership", owner)

    def take_back_offer(self) -> Action:
        def already(contract: Contract) -> bool:
            return bool(contract.read(self.node, "pendingOwner") == ZERO)

        return self._everywhere("take back the offer of ownership", already, "transferOwnership", ZERO)

    def accept_ownership(self) -> Action:
        pending = {name: self._read(name, "pendingOwner") for name in REGISTRIES}
        heirs = set(pending.values()) - {ZERO}
        if not heirs:
            return Action(ZERO, (), "no registry's ownership is offered to anybody")
        if len(heirs) > 1:
            raise Fatal(
                f"the registries are offered to different accounts ({', '.join(sorted(heirs))}): offer them again"
            )
        offered = [self._contracts()[name] for name in REGISTRIES if pending[name] != ZERO]
        return Action(heirs.pop(), tuple(c.call(f"{c.name}: accept ownership", "acceptOwnership") for c in offered))

    def _one(self, registry: str, words: str, already: bool, function: str, *arguments: object) -> Action:
        contract = self._contracts()[registry]
        return self._action([contract], words, [already], function, *arguments)

    def _everywhere(self, words: str, already: Callable[[Contract], bool], function: str, *arguments: object) -> Action:
        contracts = list(self._contracts().values())
        return self._action(contracts, words, [already(contract) for contract in contracts], function, *arguments)

    def _action(
        self, contracts: Sequence[Contract], words: str, already: Sequence[bool], function: str, *arguments: object
    ) -> Action:
        changed = [contract for contract, done in zip(contracts, already, strict=True) if not done]
        calls = tuple(contract.call(f"{contract.name}: {words}", function, *arguments) for contract in changed)
        return Action(self._owner(changed or contracts), calls, "" if calls else f"it is so already: {words}")

    def _owner(self, contracts: Sequence[Contract]) -> str:
        owners = {contract.name: contract.read(self.node, "owner") for contract in contracts}
        if len(set(owners.values())) > 1:
            listed = ", ".join(f"{name} {owner}" for name, owner in owners.items())
            raise Fatal(f"the registries have different owners ({listed}): let one account own them all first")
        return str(next(iter(owners.values())))

    def _set_model(self, words: str, same: bool, model: ModelTerms, enabled: bool) -> Action:
        values = (model.model_id, model.name, enabled, model.owned_by, model.params_schema)
        return self._one(JOBS, words, same, "setModel", *values)

    def _model(self, model_id: int) -> ModelTerms | None:
        """Return the latest terms of the model from events, because its name is not in the contract's state."""
        head = self.node.eth.block_number
        events = admin_events(self.node, self._contracts(), self.book.deploy_block, head, self.span)
        rows = [e.values for e in events if e.name == "ModelSet" and e.values["modelId"] == model_id]
        return ModelTerms(model_id, rows[-1]["name"], rows[-1]["ownedBy"], rows[-1]["paramsSchema"]) if rows else None

    def _provider(self, provider_id: int) -> dict[str, Any]:
        state = provider(self.node, self._contracts()[PROVIDERS], provider_id)
        if state["operator"] == ZERO:
            count = self._read(PROVIDERS, "providerCount")
            raise Fatal(f"there is no provider {provider_id}: ids go from 1 to {count}, and some may have left")
        return state

    def _read(self, registry: str, function: str, *arguments: object) -> Any:
        return self._contracts()[registry].read(self.node, function, *arguments)

    def _contracts(self) -> dict[str, Contract]:
        return contracts_of(self.book)
