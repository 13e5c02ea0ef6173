"""Members that mean the same in every body, each with a description, unit and example.

The examples belong to the worked order (`docs/protocol/vectors.md`), and appear in `/openapi.json`. A shape with
another meaning of a member has its own description (`common.api.shapes.described`).
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from common.api import worked_order

NOTHING: Final = msgspec.UNSET  # no example: it is built from the parts


@attrs.frozen(slots=True)
class Word:
    about: str
    example: Any = NOTHING


WORDS: Final[Mapping[str, Word]] = {
    # Orders and jobs.
    "job_id": Word("id of the job: keccak256(owner ‖ c)", worked_order.JOB),
    "owner": Word("wallet that ordered and pays", worked_order.OWNER),
    "c": Word("commitment to the sealed container, which the order signs", worked_order.C),
    "model_id": Word("number of the model, as orders sign it (`svc.model_id` of a model)", "1"),
    "sla_secs": Word("window from the claim to the settle, in seconds", "3600"),
    "sla": Word("window from the claim to the settle, in seconds", "3600"),
    "rate_in": Word("price of 10^6 input units, in base units of the payment token", "100000"),
    "rate_out": Word("price of 10^6 output units, in base units of the payment token", "200000"),
    "units_in": Word("input units that are paid for (text: one per four bytes of the input's canonical JSON)", "11"),
    "units_out": Word("output units that are paid for at most (text: tokens; images and videos: pixels)", "64"),
    "designated": Word("id of the provider that alone may claim the job; 0 for an open bid", "2"),
    "expires_at": Word("last second in which the job can be claimed or cancelled, in Unix seconds", "1800003600"),
    "provider_id": Word("id of the provider in the provider registry; of a job, 0 until it is claimed", "2"),
    "claimed_at": Word("time of the claim, in Unix seconds; 0 until then", "1800000030"),
    "completion_tok": Word("output units as the provider states them, at most `units_out`; 0 until the settle", "14"),
    "posted_block": Word("block in which the job was posted", "41"),
    "task_cid": Word(
        "content id of the sealed container: fetch it at {gateway}/ipfs/{task_cid}", worked_order.TASK_CID
    ),
    "result_cid": Word(
        "content id of the sealed result: fetch it at {gateway}/ipfs/{result_cid}", worked_order.RESULT_CID
    ),
    "tx_hash": Word("hash of the transaction", worked_order.TX),
    "auth_sig": Word(
        "the owner's ReceiveWithAuthorization signature over the quoted authorization", worked_order.PAYMENT
    ),
    "container": Word("the sealed container in base64, at most 15,679,488 bytes decoded", worked_order.CONTAINER),
    "result": Word("the sealed result in base64, not empty, at most 15,679,488 bytes decoded", worked_order.RESULT),
    "issued_at": Word(
        "time that is signed along, in Unix seconds: within 600 s of the coordinator's clock", "1800000060"
    ),
    "signature": Word("EIP-712 signature: r, s and v (27 or 28) as hex", worked_order.ANY_SIGNATURE),
    "address": Word("address of the wallet", worked_order.OWNER),
    "amount": Word("cap + fee + gas_fee, in base units of the payment token: collected at the claim", "2014"),
    "as_of_block": Word("last indexed block when this was read", "45"),
    "svc": Word("members that this market adds to the object"),
    "error": Word("the error"),
    # Sums of an owner's jobs.
    "priced": Word("jobs with whole-number rates", "1"),
    "escrowed": Word("sum of the caps of these jobs, in base units of the payment token", "14"),
    "by_model": Word("the same sums for each model that was ordered"),
    # Quotes.
    "cap": Word("most that the units can cost, in base units of the payment token", "14"),
    "fee": Word("the market's share of the cap, in base units of the payment token", "0"),
    "gas_fee": Word("flat charge for relaying, in base units of the payment token", "2000"),
    "fee_bps": Word("the market's share in basis points (1/100 %)", 250),
    "authorization": Word("the payment to sign: ReceiveWithAuthorization (EIP-3009) of the payment token"),
    "domain": Word("EIP-712 domain of the payment token"),
    "chainId": Word("chain id (EIP-155)", 31337),
    "verifyingContract": Word("address of the payment token", "0x5fbdb2315678afecb367f032d93f642f64180aa3"),
    "to": Word("who may collect: the job registry", "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0"),
    "value": Word("`amount` again, in base units of the payment token", "2014"),
    "valid_after": Word("0: valid from the start", "0"),
    "valid_before": Word("`expires_at` + 1, in Unix seconds", "1800003601"),
    "candidates": Word("live providers that would take the order, the cheapest first"),
    "accepts": Word("ways to pay; there is one"),
    "scheme": Word("name of the way: the signed authorization above", "eip3009"),
    "network": Word("chain of the payment token (CAIP-2)", "eip155:31337"),
    # The market.
    "box_key": Word("X25519 key that designated orders are sealed to", worked_order.BOX_KEY),
    "owned_by": Word("label of the model's owner", "demo"),
    "enabled": Word("true while new orders are accepted", True),
    "params_schema": Word(
        "JSON Schema of the model's input, as the market's admin published it",
        {"type": "object", "properties": {"max_output_tokens": {"type": "integer", "minimum": 1}}},
    ),
    "operator": Word("wallet that signs for the provider", "0x0d8e461687b7d06f86ec348e0c270b0f279855f0"),
    "listed": Word("true while the admin lists the provider: only then can it claim", True),
    "reputation": Word("reputation in whole points, 100 to 1000", "500"),
    "allow_all_models": Word("true where it may claim jobs of every model", False),
    "allowed_models": Word("model ids that it may claim jobs of, unless it may all", ["1"]),
    "capacity": Word("jobs that it may hold at a time: max(1, reputation · min(requested, ceiling) / 1000)", "4"),
    "requested": Word("jobs at a time that it last asked for (`request_capacity`)", "8"),
    "active_jobs": Word("jobs that it holds claimed", "0"),
    "asks": Word("asks of listed providers"),
    "floors": Word("lowest rates by model and window; each rate is the lowest of its kind"),
    "providers": Word("providers by id"),
    "entries": Word("entries of the escrow allowlist"),
    "entry": Word("text published with the entry", {}),
    # The deployment.
    "chain_id": Word("chain id (EIP-155), the one of every signing domain", 31337),
    "contracts": Word("addresses of the contracts: compare them with an address book that you trust"),
    "job_registry": Word("address of the job registry", "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0"),
    "provider_registry": Word("address of the provider registry", "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512"),
    "ask_registry": Word("address of the ask registry", "0xcf7ed3acca5a467e9e704c703e8d87f634fb0fc9"),
    "paytoken": Word("address of the payment token", "0x5fbdb2315678afecb367f032d93f642f64180aa3"),
    "decimals": Word("decimals of the payment token: 10^decimals base units are one token", 6),
    "token_domain": Word("name and version of the payment token's signing domain"),
    "name": Word("name of the signing domain", "Dev Dollar"),
    "version": Word("version of the signing domain", "1"),
    "gas_price": Word("current price of gas, in wei", "1000000000"),
    "head_block": Word("newest block that the coordinator's node has", "45"),
    "block_time_ms": Word("how often the coordinator looks at the chain, in milliseconds", 2000),
    "windows": Word(
        "windows that the market accepts, in seconds: an order's `sla_secs` must be one of them; absent while the index"
        " is not ready: then the answer to the order tells",
        [3600, 86400],
    ),
    "gateway_url": Word(
        "address of a gateway for containers and results, as {gateway}/ipfs/{cid}; absent if it is not configured",
        "https://gateway.example",
    ),
    # Sessions and the escrow.
    "token": Word("bearer token, for `authorization: Bearer …`", "svc_sess_" + "A" * 43),
    "role": Word("`client` (the default), or `provider`: bound to the wallet's provider id", "provider"),
    "escrow_public_key": Word("X25519 key that open orders are sealed to, hex without 0x", worked_order.BOX_KEY[2:]),
    "type": Word("kind of the evidence"),
    "report_data": Word(
        "sha256(public key ‖ `svc-coordinator-escrow-v1`), hex without 0x",
        "e6a4bc45dd7f0bd92354890dcf74b3c1aefb4bc4ac1c8752ae65804f70382fe4",
    ),
    "debug": Word("true for an instance that can be looked into", False),
    "release": Word("release of the software, 0 to 65535 (RELEASE_ORDINAL)", 1),
    "measurement": Word("measurement of the instance, hex without 0x: the key of its allowlist entry", "ab" * 32),
    "tcb": Word("state of the platform, as the development mode words it", "mock"),
    "seed_wrap": Word("the container's seed_wrap (80 bytes) in base64", worked_order.SEED_WRAP),
    "ct_hash": Word(
        "keccak256 of the container's ciphertext", "0xfb5624e8825d892b671a274b2890204d6ecbeab517e185b36c85049b51346499"
    ),
    "response_pubkey": Word("X25519 key that the answer is sealed to, hex without 0x", worked_order.BOX_KEY[2:]),
    "dek_sealed": Word(
        "the payload's data key in base64, sealed to `response_pubkey` (80 bytes)", "AAAA" * 26 + "AAA="
    ),
    "channel_pubkey": Word("X25519 key that the keys are sealed to, hex without 0x", worked_order.BOX_KEY[2:]),
    "operator_signature": Word(
        "HandoverAuth signature by an operator key that the holder accepts", worked_order.ANY_SIGNATURE
    ),
    "keys_sealed": Word("the held keys in base64, sealed to `channel_pubkey`", "AAAA" * 52),
    "key_count": Word("how many keys", 1),
    "holder_release": Word("release of the holder's software", 1),
    # Ops and asks.
    "op": Word("which op it is"),
    "n": Word("jobs at a time that are asked for", "8"),
    "snapshot": Word("the prices that are signed"),
    "signed_at": Word("time that is signed along, in Unix seconds: newer than the latest snapshot", "1800000000"),
    "quotes": Word("asks, at most 64; those not named stay as they are"),
    "published": Word("true: the chain has the snapshot", True),
    "block_number": Word("block of the transaction", "44"),
    "raw": Word("revert data of an error that is not known here", NOTHING),
    # Files and batches.
    "purpose": Word("`input` (a sealed container), `result`, `batch`, or `batch_output`", "batch"),
    "filename": Word("name of the file, as it was uploaded", "lines.jsonl"),
    "bytes": Word("size in bytes", 2048),
    "cid": Word("content id: send it as `container_cid` or `result_cid`", worked_order.TASK_CID),
    "input_file_id": Word("file with the lines: a `batch` upload of this session's address", worked_order.FILE_ID),
    "endpoint": Word("`/v1/responses` or `/v1/embeddings`; a line's `url`, if any, must equal it", "/v1/responses"),
    "completion_window": Word("`1h` or `24h`: the batch ends that long after its creation", "1h"),
    "metadata": Word("up to 16 pairs of strings of the owner's own; stored in plaintext", {"run": "7"}),
    "output_file_id": Word(
        "file of the settled lines; null until the batch ends, or if no line settled", worked_order.FILE_ID
    ),
    "error_file_id": Word("file of all other lines; null until the batch ends, or if there are no such lines", None),
    "created_at": Word("time of the creation, in Unix seconds", 1800000000),
    "finalizing_at": Word("time at which every line had ended, in Unix seconds, or null", 1800000070),
    "completed_at": Word("time at which the files were written, in Unix seconds, or null", 1800000071),
    "failed_at": Word("time at which the input was found unreadable, in Unix seconds, or null", None),
    "expired_at": Word("time at which the window ended first, in Unix seconds, or null", None),
    "cancelling_at": Word("time at which the owner asked for its end, in Unix seconds, or null", None),
    "cancelled_at": Word("time at which it had ended for that, in Unix seconds, or null", None),
    "request_counts": Word("how many lines there are, and how they ended"),
    "errors": Word("why the input could not be read; null unless `status` is `failed`", None),
    "first_id": Word("id of the first of `data`, or null", worked_order.BATCH_ID),
    "last_id": Word(
        "id of the last of `data`, or null: send it as `after` while `has_more` is true", worked_order.BATCH_ID
    ),
    "has_more": Word("true while there are more behind `last_id`", False),
    "plan": Word("who could take the lines of each model now; nothing is reserved"),
    "allocation": Word("shares of the lines, the cheapest provider first"),
    "models": Word("the models of the lines, 1 to 16"),
    "object": Word("kind of the object"),
    "data": Word("the objects"),
    # Readiness.
    "ready": Word("true while the index may be read", True),
    "cursor": Word("last indexed block, or null", "45"),
    "lag": Word("head_block − cursor, or null; negative where the node is behind", "0"),
}
