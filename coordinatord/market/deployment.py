"""Steps of a deployment: the contracts, their arguments, and the calls that configure them, in order.

Steps of one stage are independent, and are confirmed together. Sending, resuming, verification and explorer files all
use this list.
"""

from collections.abc import Callable
from typing import Final

from coordinatord.market.contracts import Contract, ContractCall, constructor_arguments, creation
from coordinatord.market.sending import Addresses, SendingStep
from coordinatord.market.terms import MIN_TOKEN_GAS, MarketTerms

PROVIDERS: Final = "ProviderRegistry"
JOBS: Final = "JobRegistry"
ASKS: Final = "AskRegistry"
REGISTRIES: Final = (PROVIDERS, JOBS, ASKS)


def arguments_of(name: str, terms: MarketTerms, deployer: str, addresses: Addresses) -> tuple[object, ...]:
    """Return the constructor's arguments. The deployer owns the contracts until they are configured."""
    match name:
        case "ProviderRegistry":
            return (deployer, terms.point_price)
        case "JobRegistry":
            return (deployer, terms.token, addresses[PROVIDERS], terms.treasury, terms.max_gas_fee)
        case "AskRegistry":
            return (deployer, addresses[PROVIDERS])
    raise KeyError(name)


def encoded_arguments(name: str, terms: MarketTerms, deployer: str, addresses: Addresses) -> bytes:
    return constructor_arguments(name, *arguments_of(name, terms, deployer, addresses))


def steps(terms: MarketTerms, deployer: str) -> list[SendingStep]:
    """Return the steps in the order of their nonces."""
    plan = [_creation(PROVIDERS, 1, terms, deployer)]
    plan += [_creation(name, 2, terms, deployer) for name in (JOBS, ASKS)]
    plan += [_step(3, PROVIDERS, "setJobRegistry", "wire the job registry", lambda at: (at[JOBS],))]
    plan += [_set(3, JOBS, "setFees", f"fees {terms.fee_bps} bps + {terms.gas_fee}", terms.fee_bps, terms.gas_fee)]
    if terms.token_gas != MIN_TOKEN_GAS:  # a new registry's default
        plan += [_set(3, JOBS, "setTokenGas", f"let a call of the token use {terms.token_gas} gas", terms.token_gas)]
    plan += [_set(3, JOBS, "setSla", f"allow windows of {seconds} s", seconds, True) for seconds in terms.slas]
    plan += [
        _set(3, JOBS, "setModel", f"model {m.model_id} {m.name}", m.model_id, m.name, True, m.owned_by, m.params_schema)
        for m in terms.models
    ]
    plan += [
        _set(3, registry, "setRelayer", f"relayer {relayer}", relayer, True)
        for relayer in terms.relayers
        for registry in REGISTRIES
    ]
    if terms.owner != deployer:
        plan += [
            _set(4, name, "transferOwnership", f"offer ownership to {terms.owner}", terms.owner) for name in REGISTRIES
        ]
    return plan


def _creation(name: str, stage: int, terms: MarketTerms, deployer: str) -> SendingStep:
    words = f"deploy {name}"

    def build(addresses: Addresses) -> ContractCall:
        return ContractCall(words, None, creation(name, *arguments_of(name, terms, deployer, addresses)))

    return SendingStep(words, stage, name, build)


def _set(stage: int, registry: str, function: str, words: str, *arguments: object) -> SendingStep:
    return _step(stage, registry, function, words, lambda _: arguments)


def _step(
    stage: int, registry: str, function: str, words: str, arguments: Callable[[Addresses], tuple[object, ...]]
) -> SendingStep:
    title = f"{registry}: {words}"

    def build(addresses: Addresses) -> ContractCall:
        return Contract(registry, addresses[registry]).call(title, function, *arguments(addresses))

    return SendingStep(title, stage, None, build)
