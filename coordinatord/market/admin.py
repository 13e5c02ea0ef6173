"""Prepare the contract calls of admin actions.

Calls that would not change the chain's state are left out. The command rejects an action without calls.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from web3 import Web3

from common.address_book import AddressBook
from common.daemon.process import Fatal
from coordinatord.market.admin_events import read_admin_events
from coordinatord.market.contracts import ZERO_ADDRESS, Contract, ContractCall
from coordinatord.market.deployment import JOBS, PROVIDERS, REGISTRIES
from coordinatord.market.reading import ALLOWLIST_STATUSES, contracts_of, read_provider
from coordinatord.market.terms import ModelTerms


@attrs.frozen(slots=True)
class Action:
    """Calls of one action. `sender` is the account that may send the calls. If `calls` is empty, `no_calls_reason` says
    why there is nothing to change."""

    sender: str
    calls: tuple[ContractCall, ...]
    no_calls_reason: str = ""


@attrs.frozen(slots=True)
class Admin:
    """Builds actions from the state of the chain. Sends no transaction."""

    node: Web3
    address_book: AddressBook
    log_range_blocks: int

    def list_provider(self, provider_id: int, listed: bool) -> Action:
        state = self._read_provider(provider_id)
        description = f"{'list' if listed else 'delist'} provider {provider_id} ({state['operator']})"
        return self._registry_action(
            PROVIDERS, description, state["listed"] == listed, "setListed", provider_id, listed
        )

    def set_ceiling(self, provider_id: int, ceiling: int) -> Action:
        state = self._read_provider(provider_id)
        description = f"let provider {provider_id} run {ceiling} jobs at once at most"
        return self._registry_action(
            PROVIDERS, description, state["ceiling"] == ceiling, "setCeiling", provider_id, ceiling
        )

    def allow_all_models(self, provider_id: int, allowed: bool) -> Action:
        state = self._read_provider(provider_id)
        description = f"provider {provider_id}: {'every model' if allowed else 'only models allowed one by one'}"
        return self._registry_action(
            PROVIDERS, description, state["allowAllModels"] == allowed, "setAllowAllModels", provider_id, allowed
        )

    def allow_model(self, provider_id: int, model_id: int, allowed: bool) -> Action:
        if self._read_provider(provider_id)["allowAllModels"]:
            raise Fatal(f"provider {provider_id} may run every model: run `allow-all-models {provider_id} no` first")
        current = self._read_view(PROVIDERS, "modelAllowed", provider_id, model_id)
        description = f"{'allow' if allowed else 'forbid'} model {model_id} to provider {provider_id}"
        return self._registry_action(
            PROVIDERS, description, current == allowed, "setModelAllowed", provider_id, model_id, allowed
        )

    def set_allowlist(self, key: bytes, status: int, entry: str) -> Action:
        current = self._read_view(PROVIDERS, "allowlistStatus", key)
        description = f"escrow allowlist: 0x{key.hex()} {ALLOWLIST_STATUSES[status]}{f' ({entry})' if entry else ''}"
        # Entries are stored only in events. So an entry must be published even if the status does not change.
        return self._registry_action(
            PROVIDERS, description, current == status and not entry, "setAllowlist", key, status, entry
        )

    def set_model(self, model: ModelTerms, enabled: bool) -> Action:
        latest = self._read_model(model.model_id)
        unchanged = latest == model and self._read_view(JOBS, "modelEnabled", model.model_id) == enabled
        description = f"model {model.model_id} {model.name}, {'enabled' if enabled else 'disabled'}"
        return self._set_model(description, unchanged, model, enabled)

    def set_model_enabled(self, model_id: int, enabled: bool) -> Action:
        model = self._read_model(model_id)
        if model is None:
            raise Fatal(f"model {model_id} was never set: run `set-model {model_id} --name …` first")
        current = self._read_view(JOBS, "modelEnabled", model_id)
        return self._set_model(
            f"{'enable' if enabled else 'disable'} model {model_id} {model.name}", current == enabled, model, enabled
        )

    def allow_sla(self, seconds: int, allowed: bool) -> Action:
        current = self._read_view(JOBS, "slaAllowed", seconds)
        return self._registry_action(
            JOBS,
            f"{'allow' if allowed else 'forbid'} windows of {seconds} s",
            current == allowed,
            "setSla",
            seconds,
            allowed,
        )

    def set_fees(self, fee_bps: int, gas_fee: int) -> Action:
        current, max_gas_fee = tuple(self._read_view(JOBS, "fees")), self._read_view(JOBS, "maxGasFee")
        if gas_fee > max_gas_fee:
            raise Fatal(f"the gas fee must be at most {max_gas_fee}, the fixed limit of this registry")
        description = f"fees of {fee_bps} bps and {gas_fee} for jobs posted from now on"
        return self._registry_action(JOBS, description, current == (fee_bps, gas_fee), "setFees", fee_bps, gas_fee)

    def set_token_gas(self, gas: int) -> Action:
        current = self._read_view(JOBS, "tokenGas")
        return self._registry_action(JOBS, f"let a call of the token use {gas} gas", current == gas, "setTokenGas", gas)

    def set_point_price(self, price: int) -> Action:
        current = self._read_view(PROVIDERS, "pointPrice")
        description = f"a point of reputation for each {price} that the treasury gets"
        return self._registry_action(PROVIDERS, description, current == price, "setPointPrice", price)

    def set_treasury(self, treasury: str) -> Action:
        if treasury in {self._registry_contracts()[name].address for name in REGISTRIES} | {
            self._read_view(JOBS, "token")
        }:
            raise Fatal(f"treasury must not be a registry or the token: payments to {treasury} would be lost")
        current = self._read_view(JOBS, "treasury")
        return self._registry_action(JOBS, f"treasury {treasury}", current == treasury, "setTreasury", treasury)

    def set_relayer(self, relayer: str, allowed: bool) -> Action:
        description = f"{'grant' if allowed else 'revoke'} relayer {relayer}"
        return self._all_registries_action(
            description,
            lambda contract: bool(contract.read(self.node, "isRelayer", relayer)) == allowed,
            "setRelayer",
            relayer,
            allowed,
        )

    def pause(self, paused: bool) -> Action:
        current = self._read_view(JOBS, "paused")
        description = "stop posts and claims" if paused else "allow posts and claims again"
        return self._registry_action(JOBS, description, current == paused, "pause" if paused else "unpause")

    def transfer_ownership(self, owner: str) -> Action:
        def is_done(contract: Contract) -> bool:
            pending = contract.read(self.node, "pendingOwner")
            return bool(owner == pending or (pending == ZERO_ADDRESS and owner == contract.read(self.node, "owner")))

        return self._all_registries_action(f"offer ownership to {owner}", is_done, "transferOwnership", owner)

    def take_back_offer(self) -> Action:
        def is_done(contract: Contract) -> bool:
            return bool(contract.read(self.node, "pendingOwner") == ZERO_ADDRESS)

        return self._all_registries_action(
            "take back the offer of ownership", is_done, "transferOwnership", ZERO_ADDRESS
        )

    def accept_ownership(self) -> Action:
        pending = {name: self._read_view(name, "pendingOwner") for name in REGISTRIES}
        new_owners = set(pending.values()) - {ZERO_ADDRESS}
        if not new_owners:
            return Action(ZERO_ADDRESS, (), "no registry's ownership is offered to an account")
        if len(new_owners) > 1:
            listed = ", ".join(sorted(new_owners))
            raise Fatal(
                f"the registries are offered to different accounts ({listed}): offer all of them to one account"
            )
        offered = [self._registry_contracts()[name] for name in REGISTRIES if pending[name] != ZERO_ADDRESS]
        return Action(
            new_owners.pop(), tuple(c.build_call(f"{c.name}: accept ownership", "acceptOwnership") for c in offered)
        )

    def _registry_action(
        self, registry: str, description: str, is_done: bool, function: str, *arguments: object
    ) -> Action:
        contract = self._registry_contracts()[registry]
        return self._build_action([contract], description, [is_done], function, *arguments)

    def _all_registries_action(
        self, description: str, is_done: Callable[[Contract], bool], function: str, *arguments: object
    ) -> Action:
        contracts = list(self._registry_contracts().values())
        return self._build_action(
            contracts, description, [is_done(contract) for contract in contracts], function, *arguments
        )

    def _build_action(
        self,
        contracts: Sequence[Contract],
        description: str,
        done: Sequence[bool],
        function: str,
        *arguments: object,
    ) -> Action:
        changed = [contract for contract, is_done in zip(contracts, done, strict=True) if not is_done]
        calls = tuple(
            contract.build_call(f"{contract.name}: {description}", function, *arguments) for contract in changed
        )
        return Action(self._read_owner(changed or contracts), calls, "" if calls else f"already done: {description}")

    def _read_owner(self, contracts: Sequence[Contract]) -> str:
        owners = {contract.name: contract.read(self.node, "owner") for contract in contracts}
        if len(set(owners.values())) > 1:
            listed = ", ".join(f"{name} {owner}" for name, owner in owners.items())
            raise Fatal(f"the registries have different owners ({listed}): transfer all of them to one account first")
        return str(next(iter(owners.values())))

    def _set_model(self, description: str, unchanged: bool, model: ModelTerms, enabled: bool) -> Action:
        values = (model.model_id, model.name, enabled, model.owned_by, model.params_schema)
        return self._registry_action(JOBS, description, unchanged, "setModel", *values)

    def _read_model(self, model_id: int) -> ModelTerms | None:
        """Return the latest terms of the model from events, because the contract's state does not include the name."""
        head = self.node.eth.block_number
        events = read_admin_events(
            self.node, self._registry_contracts(), self.address_book.deploy_block, head, self.log_range_blocks
        )
        rows = [e.values for e in events if e.name == "ModelSet" and e.values["modelId"] == model_id]
        return ModelTerms(model_id, rows[-1]["name"], rows[-1]["ownedBy"], rows[-1]["paramsSchema"]) if rows else None

    def _read_provider(self, provider_id: int) -> dict[str, Any]:
        state = read_provider(self.node, self._registry_contracts()[PROVIDERS], provider_id)
        if state["operator"] == ZERO_ADDRESS:
            count = self._read_view(PROVIDERS, "providerCount")
            raise Fatal(
                f"there is no provider {provider_id}: ids go from 1 to {count}, and some providers may have left"
            )
        return state

    def _read_view(self, registry: str, function: str, *arguments: object) -> Any:
        return self._registry_contracts()[registry].read(self.node, function, *arguments)

    def _registry_contracts(self) -> dict[str, Contract]:
        return contracts_of(self.address_book)
