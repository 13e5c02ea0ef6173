"""Steps of a deployment: the contracts, their arguments, and the calls that configure the contracts, in order.

Steps of one stage are independent, and are confirmed together. Sending, resuming, verification and explorer files all
use this list.
"""

from collections.abc import Callable
from typing import Final

from coordinatord.market.contracts import Contract, ContractCall, creation_data, encode_constructor_arguments
from coordinatord.market.sending import ContractAddresses, SendingStep
from coordinatord.market.terms import MIN_TOKEN_GAS, MarketTerms

PROVIDERS: Final = "ProviderRegistry"
JOBS: Final = "JobRegistry"
ASKS: Final = "AskRegistry"
REGISTRIES: Final = (PROVIDERS, JOBS, ASKS)


def constructor_arguments(
    name: str, terms: MarketTerms, deployer: str, addresses: ContractAddresses
) -> tuple[object, ...]:
    """Return the constructor's arguments. The deployer owns the contracts until they are configured."""
    match name:
        case "ProviderRegistry":
            return (deployer, terms.point_price)
        case "JobRegistry":
            return (deployer, terms.token, addresses[PROVIDERS], terms.treasury, terms.max_gas_fee)
        case "AskRegistry":
            return (deployer, addresses[PROVIDERS])
    raise KeyError(name)


def encode_constructor_arguments_of(
    name: str, terms: MarketTerms, deployer: str, addresses: ContractAddresses
) -> bytes:
    return encode_constructor_arguments(name, *constructor_arguments(name, terms, deployer, addresses))


def deployment_steps(terms: MarketTerms, deployer: str) -> list[SendingStep]:
    """Return the steps in the order of their nonces."""
    plan = [_creation_step(PROVIDERS, 1, terms, deployer)]
    plan += [_creation_step(name, 2, terms, deployer) for name in (JOBS, ASKS)]
    plan += [_call_step(3, PROVIDERS, "setJobRegistry", "wire the job registry", lambda at: (at[JOBS],))]
    plan += [
        _setting_step(3, JOBS, "setFees", f"fees {terms.fee_bps} bps + {terms.gas_fee}", terms.fee_bps, terms.gas_fee)
    ]
    if terms.token_gas != MIN_TOKEN_GAS:  # a new registry already has this value
        plan += [
            _setting_step(3, JOBS, "setTokenGas", f"let a call of the token use {terms.token_gas} gas", terms.token_gas)
        ]
    plan += [_setting_step(3, JOBS, "setSla", f"allow windows of {seconds} s", seconds, True) for seconds in terms.slas]
    plan += [
        _setting_step(
            3, JOBS, "setModel", f"model {m.model_id} {m.name}", m.model_id, m.name, True, m.owned_by, m.params_schema
        )
        for m in terms.models
    ]
    plan += [
        _setting_step(3, registry, "setRelayer", f"relayer {relayer}", relayer, True)
        for relayer in terms.relayers
        for registry in REGISTRIES
    ]
    if terms.owner != deployer:
        plan += [
            _setting_step(4, name, "transferOwnership", f"offer ownership to {terms.owner}", terms.owner)
            for name in REGISTRIES
        ]
    return plan


def _creation_step(name: str, stage: int, terms: MarketTerms, deployer: str) -> SendingStep:
    description = f"deploy {name}"

    def build(addresses: ContractAddresses) -> ContractCall:
        return ContractCall(
            description, None, creation_data(name, *constructor_arguments(name, terms, deployer, addresses))
        )

    return SendingStep(description, stage, name, build)


def _setting_step(stage: int, registry: str, function: str, description: str, *arguments: object) -> SendingStep:
    return _call_step(stage, registry, function, description, lambda _: arguments)


def _call_step(
    stage: int,
    registry: str,
    function: str,
    description: str,
    arguments: Callable[[ContractAddresses], tuple[object, ...]],
) -> SendingStep:
    title = f"{registry}: {description}"

    def build(addresses: ContractAddresses) -> ContractCall:
        return Contract(registry, addresses[registry]).build_call(title, function, *arguments(addresses))

    return SendingStep(title, stage, None, build)
