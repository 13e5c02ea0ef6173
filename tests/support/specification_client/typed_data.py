"""The messages that a client signs, in eth-account's own form of EIP-712."""

from typing import Any, Final

from eth_account import Account

_FIELDS: Final = {
    "Order": (
        *(("c", "bytes32"), ("modelId", "uint32"), ("slaSecs", "uint32"), ("rateIn", "uint128")),
        *(("rateOut", "uint128"), ("unitsIn", "uint32"), ("unitsOut", "uint32"), ("designated", "uint32")),
        ("expiresAt", "uint64"),
    ),
    "Cancel": (("jobId", "bytes32"), ("issuedAt", "uint64")),
    "ReceiveWithAuthorization": (
        *(("from", "address"), ("to", "address"), ("value", "uint256")),
        *(("validAfter", "uint256"), ("validBefore", "uint256"), ("nonce", "bytes32")),
    ),
    "SvcSession": (("address", "address"), ("nonce", "string")),
    "ResultKey": (("purpose", "string"),),
}

Domain = dict[str, Any]
Message = dict[str, Any]


def signed(private_key: str, domain: Domain, name: str, message: Message) -> bytes:
    """Return 65 bytes, v 27 or 28. `message` has its fields in the order of the type."""
    types = {name: [{"name": field, "type": kind} for field, kind in _FIELDS[name]]}
    done = Account.sign_typed_data(private_key, domain_data=domain, message_types=types, message_data=message)
    return bytes(done.signature)


def jobs_domain(chain_id: int, job_registry: str) -> Domain:
    return {"name": "SVC Jobs", "version": "2", "chainId": chain_id, "verifyingContract": job_registry}


def session_domain(chain_id: int) -> Domain:
    return {"name": "SVC Session", "version": "1", "chainId": chain_id}


def results_domain(chain_id: int) -> Domain:
    return {"name": "SVC Results", "version": "1", "chainId": chain_id}
