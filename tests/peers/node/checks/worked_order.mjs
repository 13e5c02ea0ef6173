import { strictEqual } from "node:assert";

import { blake2b } from "@noble/hashes/blake2.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { keccak_256 } from "@noble/hashes/sha3.js";
import { TypedDataEncoder, Wallet, getAddress } from "ethers";
import { CID } from "multiformats/cid";
import { create } from "multiformats/hashes/digest";
import nacl from "tweetnacl";

import * as bytes from "../bytes.mjs";
import { concat, unhex, utf8 } from "../bytes.mjs";
import { dataKey, derive } from "../derivation.mjs";
import { openSealed } from "../sealed_box.mjs";
import { FINAL, SecretStream } from "../secretstream.mjs";
import { canonical } from "../strict_json.mjs";

const bare = (text) => unhex(text.slice(2));
const hex = (raw) => `0x${bytes.hex(raw)}`;
const fields = (listed) => listed.split(",").map((each) => {
  const [type, name] = each.split(" ");
  return { type, name };
});
const TYPES = {
  Order: fields(
    "bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,uint32 unitsOut," +
      "uint32 designated,uint64 expiresAt",
  ),
  Settle: fields("bytes32 jobId,uint32 completionTok,uint64 issuedAt"),
  ReceiveWithAuthorization: fields(
    "address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce",
  ),
  ResultKey: fields("string purpose"),
};

// Check the digest of a message, and its wallet's signature.
function signed(secret, domain, type, message, digest, signature) {
  strictEqual(TypedDataEncoder.hash(domain, { [type]: TYPES[type] }, message), digest);
  strictEqual(new Wallet(secret).signingKey.sign(digest).serialized, signature);
}

// 0x01 ‖ sealed box of the seed ‖ header ‖ one last frame, with fixed values for the random ones.
function sealed(plaintext, recipient, seed, ephemeral, header, key) {
  const own = nacl.scalarMult.base(ephemeral);
  const nonce = blake2b(concat(own, recipient), { dkLen: 24 });
  const wrap = concat(own, nacl.box(seed, nonce, recipient, ephemeral));
  return concat([1], wrap, header, new SecretStream(key, header).push(plaintext, FINAL));
}

function checkPrices(one) {
  const number = (text) => BigInt(text);
  const { rateIn, rateOut, unitsIn, unitsOut } = one.order;
  const price = (units) => (number(rateIn) * number(unitsIn) + number(rateOut) * number(units) + 999_999n) / 1_000_000n;
  const fee = (paid) => (paid * number(one.fee_bps)) / 10_000n;
  const cap = price(unitsOut);
  strictEqual(cap + fee(cap) + number(one.gas_fee), number(one.amount));
  const cost = price(one.completion_tok);
  strictEqual(cost, number(one.cost));
  strictEqual(fee(cost) + number(one.gas_fee), number(one.treasury));
  strictEqual(number(one.amount) - cost - number(one.treasury), number(one.refund));
}

const cidOf = (raw) => CID.createV1(0x55, create(0x12, sha256(raw))).toString();

function checkWorkedOrder(one) {
  const chain = { version: "2", chainId: one.chain_id };
  const jobs = { name: "SVC Jobs", ...chain, verifyingContract: one.job_registry };
  const registry = bare(one.job_registry);
  strictEqual(new Wallet(one.wallet_secret).address, getAddress(one.owner));
  strictEqual(hex(nacl.scalarMult.base(bare(one.box_secret))), one.box_key);

  const results = { name: "SVC Results", version: "1", chainId: one.chain_id };
  const purpose = { purpose: "result key" };
  signed(one.wallet_secret, results, "ResultKey", purpose, one.result_key_digest, one.result_key_signature);
  const resultSecret = derive(bare(one.result_key_signature), "svc-result-key-v1");
  strictEqual(hex(resultSecret), one.result_secret);
  strictEqual(hex(nacl.scalarMult.base(resultSecret)), one.result_key);

  const input = JSON.parse(one.input);
  strictEqual(canonical(input), one.input);
  strictEqual(String(Math.max(1, Math.ceil(utf8(one.input).length / 4))), one.order.unitsIn);
  strictEqual(String(input.max_output_tokens), one.order.unitsOut);
  const envelope = { v: 1, owner: one.owner, model: one.model, input, result_key: one.result_key };
  strictEqual(canonical(envelope), one.envelope);

  const key = dataKey("svc-dek-v1", bare(one.seed), one.chain_id, registry, bare(one.owner));
  strictEqual(hex(key), one.data_key);
  const random = [bare(one.seed), bare(one.ephemeral_secret), bare(one.header)];
  const container = sealed(utf8(one.envelope), bare(one.box_key), ...random, key);
  strictEqual(hex(container.subarray(1, 81)), one.seed_wrap);
  strictEqual(hex(openSealed(bare(one.box_secret), container.subarray(1, 81))), one.seed);
  strictEqual(hex(container.subarray(81)), one.ciphertext);
  strictEqual(hex(keccak_256(container.subarray(81))), one.ct_hash);
  strictEqual(hex(keccak_256(concat(container.subarray(0, 81), bare(one.ct_hash)))), one.c);
  strictEqual(Buffer.from(container).toString("base64"), one.container);
  strictEqual(cidOf(container), one.task_cid);
  strictEqual(hex(keccak_256(concat(bare(one.owner), bare(one.c)))), one.job_id);

  strictEqual(one.order.c, one.c);
  signed(one.wallet_secret, jobs, "Order", one.order, one.order_digest, one.order_signature);
  checkPrices(one);
  const token = {
    name: one.token_name, version: one.token_version, chainId: one.chain_id, verifyingContract: one.token,
  };
  const payment = {
    from: one.owner, to: one.job_registry, value: one.amount, validAfter: 0,
    validBefore: BigInt(one.order.expiresAt) + 1n, nonce: one.job_id,
  };
  signed(one.wallet_secret, token, "ReceiveWithAuthorization", payment, one.payment_digest, one.auth_sig);

  strictEqual(canonical(JSON.parse(one.result_body)), one.result_body);
  strictEqual(JSON.parse(one.result_body).job_id, one.job_id);
  const resultDataKey = dataKey("svc-result-v1", bare(one.result_seed), one.chain_id, registry, bare(one.job_id));
  strictEqual(hex(resultDataKey), one.result_data_key);
  const drawn = [bare(one.result_seed), bare(one.result_ephemeral_secret), bare(one.result_header)];
  const result = sealed(utf8(one.result_body), bare(one.result_key), ...drawn, resultDataKey);
  strictEqual(Buffer.from(result).toString("base64"), one.sealed_result);
  strictEqual(cidOf(result), one.result_cid);
  const settle = { jobId: one.job_id, completionTok: one.completion_tok, issuedAt: one.settle_issued_at };
  signed(one.provider_secret, jobs, "Settle", settle, one.settle_digest, one.settle_signature);
}

export const checks = { "worked_order.json": checkWorkedOrder };
