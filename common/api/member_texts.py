"""Descriptions and examples of members with the same meaning in every body.

The examples belong to the worked order (`docs/protocol/vectors.md`), and appear in `/openapi.json`. If a
member means something else in a shape, the shape describes the member with `common.api.shapes.described`.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec

from common.api import worked_order

NO_EXAMPLE: Final = msgspec.UNSET  # the example is built from the examples of the nested members


@attrs.frozen(slots=True)
class MemberText:
    """Description and example of a member, for all bodies that have a member of this name."""

    about: str
    example: Any = NO_EXAMPLE


MEMBER_TEXTS: Final[Mapping[str, MemberText]] = {
    # Orders and jobs.
    "job_id": MemberText("id of the job: keccak256(owner ‖ c)", worked_order.JOB_ID),
    "owner": MemberText("wallet that ordered and pays", worked_order.OWNER),
    "c": MemberText("commitment to the sealed container, which the order signs", worked_order.COMMITMENT),
    "model_id": MemberText("number of the model, as orders sign it (`svc.model_id` of a model)", "1"),
    "sla_secs": MemberText("window from the claim to the settle, in seconds", "3600"),
    "sla": MemberText("window from the claim to the settle, in seconds", "3600"),
    "rate_in": MemberText("price of 10^6 input units, in base units of the payment token", "100000"),
    "rate_out": MemberText("price of 10^6 output units, in base units of the payment token", "200000"),
    "units_in": MemberText("paid input units (text: one per four bytes of the input's canonical JSON)", "11"),
    "units_out": MemberText("maximum output units to pay for (text: tokens; images and videos: pixels)", "64"),
    "designated": MemberText("id of the only provider that may claim the job; 0 for an open bid", "2"),
    "expires_at": MemberText("last second in which the job can be claimed or cancelled, in Unix seconds", "1800003600"),
    "provider_id": MemberText("id of the provider in the provider registry; of a job, 0 until it is claimed", "2"),
    "claimed_at": MemberText("time of the claim, in Unix seconds; 0 before the claim", "1800000030"),
    "completion_tok": MemberText("output units stated by the provider, at most `units_out`; 0 until the settle", "14"),
    "posted_block": MemberText("block in which the job was posted", "41"),
    "task_cid": MemberText(
        "content id of the sealed container: fetch it at {gateway}/ipfs/{task_cid}", worked_order.TASK_CID
    ),
    "result_cid": MemberText(
        "content id of the sealed result: fetch it at {gateway}/ipfs/{result_cid}", worked_order.RESULT_CID
    ),
    "tx_hash": MemberText("hash of the transaction", worked_order.TX_HASH),
    "auth_sig": MemberText(
        "the owner's ReceiveWithAuthorization signature over the quoted authorization", worked_order.PAYMENT_SIGNATURE
    ),
    "container": MemberText("the sealed container in base64, at most 15,679,488 bytes decoded", worked_order.CONTAINER),
    "result": MemberText(
        "the sealed result in base64, not empty, at most 15,679,488 bytes decoded", worked_order.RESULT
    ),
    "issued_at": MemberText(
        "signed time of the op, in Unix seconds: within 600 s of the coordinator's clock", "1800000060"
    ),
    "signature": MemberText("EIP-712 signature: r, s and v (27 or 28) as hex", worked_order.ANY_SIGNATURE),
    "address": MemberText("address of the wallet", worked_order.OWNER),
    "amount": MemberText("cap + fee + gas_fee, in base units of the payment token: collected at the claim", "2014"),
    "as_of_block": MemberText("last indexed block at the time of the read", "45"),
    "svc": MemberText("members that this market adds to the object"),
    "error": MemberText("the error"),
    # Sums of an owner's jobs.
    "priced": MemberText("jobs whose rates are whole numbers", "1"),
    "escrowed": MemberText("sum of the caps of these jobs, in base units of the payment token", "14"),
    "by_model": MemberText("the same sums for each ordered model"),
    # Quotes.
    "cap": MemberText("maximum price of the units, in base units of the payment token", "14"),
    "fee": MemberText("the market's share of the cap, in base units of the payment token", "0"),
    "gas_fee": MemberText("flat charge for relaying, in base units of the payment token", "2000"),
    "fee_bps": MemberText("the market's share in basis points (1/100 %)", 250),
    "authorization": MemberText("the payment to sign: ReceiveWithAuthorization (EIP-3009) of the payment token"),
    "domain": MemberText("EIP-712 domain of the payment token"),
    "chainId": MemberText("chain id (EIP-155)", 31337),
    "verifyingContract": MemberText("address of the payment token", "0x5fbdb2315678afecb367f032d93f642f64180aa3"),
    "to": MemberText(
        "contract that may collect the payment: the job registry", "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0"
    ),
    "value": MemberText("equal to `amount`, in base units of the payment token", "2014"),
    "valid_after": MemberText("0: valid from the start", "0"),
    "valid_before": MemberText("`expires_at` + 1, in Unix seconds", "1800003601"),
    "candidates": MemberText("live providers that would take the order, cheapest first"),
    "accepts": MemberText("accepted payment schemes; there is one"),
    "scheme": MemberText("name of the payment scheme; `eip3009` is payment by the signed `authorization`", "eip3009"),
    "network": MemberText("chain of the payment token (CAIP-2)", "eip155:31337"),
    # The market.
    "box_key": MemberText("X25519 key to which clients seal designated orders", worked_order.BOX_KEY),
    "owned_by": MemberText("label of the model's owner", "demo"),
    "enabled": MemberText("true while new orders are accepted", True),
    "params_schema": MemberText(
        "JSON Schema of the model's input, as the market's admin published it",
        {"type": "object", "properties": {"max_output_tokens": {"type": "integer", "minimum": 1}}},
    ),
    "operator": MemberText("wallet that signs for the provider", "0x0d8e461687b7d06f86ec348e0c270b0f279855f0"),
    "listed": MemberText("true while the admin lists the provider; only listed providers can claim", True),
    "reputation": MemberText("reputation in whole points, 100 to 1000", "500"),
    "allow_all_models": MemberText("true if the provider may claim jobs of every model", False),
    "allowed_models": MemberText("ids of the models that the provider may claim if `allow_all_models` is false", ["1"]),
    "capacity": MemberText("maximum concurrent jobs: max(1, reputation · min(requested, ceiling) / 1000)", "4"),
    "requested": MemberText("concurrent jobs that the provider last requested (`request_capacity`)", "8"),
    "active_jobs": MemberText("claimed jobs that have not ended", "0"),
    "asks": MemberText("asks of listed providers"),
    "floors": MemberText("lowest rates by model and window; each rate is the lowest of its kind"),
    "providers": MemberText("providers by id"),
    "entries": MemberText("entries of the escrow allowlist"),
    "entry": MemberText("text published with the entry", {}),
    # The deployment.
    "chain_id": MemberText("chain id (EIP-155), used in every signing domain", 31337),
    "contracts": MemberText("addresses of the contracts: compare them with an address book that you trust"),
    "job_registry": MemberText("address of the job registry", "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0"),
    "provider_registry": MemberText("address of the provider registry", "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512"),
    "ask_registry": MemberText("address of the ask registry", "0xcf7ed3acca5a467e9e704c703e8d87f634fb0fc9"),
    "paytoken": MemberText("address of the payment token", "0x5fbdb2315678afecb367f032d93f642f64180aa3"),
    "decimals": MemberText("decimals of the payment token: 10^decimals base units are one token", 6),
    "token_domain": MemberText("name and version of the payment token's signing domain"),
    "name": MemberText("name of the signing domain", "Dev Dollar"),
    "version": MemberText("version of the signing domain", "1"),
    "gas_price": MemberText("current price of gas, in wei", "1000000000"),
    "head_block": MemberText("newest block that the coordinator's node has", "45"),
    "block_time_ms": MemberText("interval at which the coordinator reads the chain, in milliseconds", 2000),
    "windows": MemberText(
        "values that the market accepts as an order's `sla_secs`, in seconds; absent while the index is not ready, when"
        " only posting the order shows whether a window is accepted",
        [3600, 86400],
    ),
    "gateway_url": MemberText(
        "address of a gateway for containers and results, as {gateway}/ipfs/{cid}; absent if it is not configured",
        "https://gateway.example",
    ),
    # Sessions and the escrow.
    "token": MemberText("bearer token, for `authorization: Bearer …`", "svc_sess_" + "A" * 43),
    "role": MemberText("`client` (the default), or `provider`: bound to the wallet's provider id", "provider"),
    "escrow_public_key": MemberText(
        "X25519 key to which clients seal open orders, hex without 0x", worked_order.BOX_KEY[2:]
    ),
    "type": MemberText("kind of the evidence"),
    "report_data": MemberText(
        "sha256(public key ‖ `svc-coordinator-escrow-v1`), hex without 0x",
        "e6a4bc45dd7f0bd92354890dcf74b3c1aefb4bc4ac1c8752ae65804f70382fe4",
    ),
    "debug": MemberText("true for an instance whose memory its operator can read", False),
    "release": MemberText("release of the software, 0 to 65535 (RELEASE_ORDINAL)", 1),
    "measurement": MemberText("measurement of the instance, hex without 0x: the key of its allowlist entry", "ab" * 32),
    "tcb": MemberText("state of the platform's security updates; `mock` in development", "mock"),
    "seed_wrap": MemberText("the container's seed_wrap (80 bytes) in base64", worked_order.SEED_WRAP),
    "ct_hash": MemberText(
        "keccak256 of the container's ciphertext", "0xfb5624e8825d892b671a274b2890204d6ecbeab517e185b36c85049b51346499"
    ),
    "response_pubkey": MemberText(
        "X25519 key to which the response is sealed, hex without 0x", worked_order.BOX_KEY[2:]
    ),
    "dek_sealed": MemberText(
        "the payload's data key in base64, sealed to `response_pubkey` (80 bytes)", "AAAA" * 26 + "AAA="
    ),
    "channel_pubkey": MemberText(
        "X25519 key to which the escrow keys are sealed, hex without 0x", worked_order.BOX_KEY[2:]
    ),
    "operator_signature": MemberText(
        "HandoverAuth signature by an operator key that the instance with the keys accepts", worked_order.ANY_SIGNATURE
    ),
    "keys_sealed": MemberText("the escrow keys in base64, sealed to `channel_pubkey`", "AAAA" * 52),
    "key_count": MemberText("number of keys", 1),
    "holder_release": MemberText("release of the software of the instance that sent the keys", 1),
    # Ops and asks.
    "op": MemberText("name of the op"),
    "n": MemberText("requested number of concurrent jobs", "8"),
    "snapshot": MemberText("the signed prices"),
    "signed_at": MemberText("time of signing, in Unix seconds: newer than the latest snapshot", "1800000000"),
    "quotes": MemberText("asks, at most 64; asks that are not listed stay unchanged"),
    "published": MemberText("true: the snapshot is on the chain", True),
    "block_number": MemberText("block of the transaction", "44"),
    "raw": MemberText("revert data of an unknown error", NO_EXAMPLE),
    # Files and batches.
    "purpose": MemberText("`input` (a sealed container), `result`, `batch`, or `batch_output`", "batch"),
    "filename": MemberText("name of the file, as it was uploaded", "lines.jsonl"),
    "bytes": MemberText("size in bytes", 2048),
    "cid": MemberText("content id: send it as `container_cid` or `result_cid`", worked_order.TASK_CID),
    "input_file_id": MemberText(
        "file with the lines: a `batch` upload of this session's address", worked_order.FILE_ID
    ),
    "endpoint": MemberText(
        "`/v1/responses` or `/v1/embeddings`; a line's `url`, if any, must equal it", "/v1/responses"
    ),
    "completion_window": MemberText("`1h` or `24h`: time from the batch's creation to its end", "1h"),
    "metadata": MemberText("up to 16 pairs of strings that the owner chooses; stored in plaintext", {"run": "7"}),
    "output_file_id": MemberText(
        "file of the settled lines; null until the batch ends, or if no line settled", worked_order.FILE_ID
    ),
    "error_file_id": MemberText(
        "file of all other lines; null until the batch ends, or if there are no such lines", None
    ),
    "created_at": MemberText("time of the creation, in Unix seconds", 1800000000),
    "finalizing_at": MemberText("time at which every line had ended, in Unix seconds, or null", 1800000070),
    "completed_at": MemberText("time at which the files were written, in Unix seconds, or null", 1800000071),
    "failed_at": MemberText("time at which the input was found unreadable, in Unix seconds, or null", None),
    "expired_at": MemberText("time at which the window ended, in Unix seconds, or null", None),
    "cancelling_at": MemberText("time at which the owner requested the cancellation, in Unix seconds, or null", None),
    "cancelled_at": MemberText("time at which the cancelled batch had ended, in Unix seconds, or null", None),
    "request_counts": MemberText("number of lines by outcome"),
    "errors": MemberText("reason why the input could not be read; null unless `status` is `failed`", None),
    "first_id": MemberText("id of the first object in `data`, or null", worked_order.BATCH_ID),
    "last_id": MemberText(
        "id of the last object in `data`, or null: send it as `after` while `has_more` is true", worked_order.BATCH_ID
    ),
    "has_more": MemberText("true if more objects follow `last_id`", False),
    "plan": MemberText("providers that could take the lines of each model now; nothing is reserved"),
    "allocation": MemberText("share of the lines for each provider, cheapest first"),
    "models": MemberText("the models of the lines, 1 to 16"),
    "object": MemberText("kind of the object"),
    "data": MemberText("the objects"),
    # Readiness.
    "ready": MemberText("true if the index is current enough to answer reads", True),
    "cursor": MemberText("last indexed block, or null", "45"),
    "lag": MemberText("head_block − cursor, or null; negative if the node is behind the index", "0"),
}
