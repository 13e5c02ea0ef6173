import { deepStrictEqual, strictEqual } from "node:assert";

import { sha256 } from "@noble/hashes/sha2.js";
import { solidityPackedKeccak256 } from "ethers";
import nacl from "tweetnacl";

import { bigEndian, concat, hex, unhex, utf8 } from "../bytes.mjs";
import { dataKey, derive } from "../derivation.mjs";
import { Refused } from "../refused.mjs";
import { openSealed, publicKey } from "../sealed_box.mjs";

function resultKey(signature) {
  if (signature.length !== 65) throw new Refused("length");
  if (signature[64] !== 27 && signature[64] !== 28) throw new Refused("signature_v");
  return derive(signature, "svc-result-key-v1");
}

const KINDS = {
  data_key: (one) =>
    dataKey("svc-dek-v1", unhex(one.seed), one.chain_id, unhex(one.job_registry), unhex(one.owner)),
  result_data_key: (one) =>
    dataKey("svc-result-v1", unhex(one.seed), one.chain_id, unhex(one.job_registry), unhex(one.job_id)),
  result_key: (one) => resultKey(unhex(one.signature)),
  escrow_key: (one) => derive(unhex(one.operator_key), "svc-escrow-v1"),
};

function checkDerivation(one) {
  const key = KINDS[one.kind](one);
  strictEqual(hex(key), one.key);
  if (one.public !== undefined) strictEqual(hex(nacl.scalarMult.base(key)), one.public);
}

function checkSealedBoxKeys(one) {
  if (one.sealed !== undefined) {
    const plaintext = openSealed(unhex(one.secret), unhex(one.sealed));
    if (plaintext === null) throw new Refused("does_not_open");
    strictEqual(hex(plaintext), one.plaintext);
    return;
  }
  const key = publicKey(unhex(one.public));
  strictEqual(hex(nacl.scalarMult.base(unhex(one.secret))), hex(key));
}

function checkEscrowEvidence(one) {
  if (one.kind === "report_data") {
    strictEqual(hex(sha256(concat(unhex(one.public), utf8("svc-coordinator-escrow-v1")))), one.report_data);
  } else {
    const measured = concat(utf8("svc-mock-measurement-v1"), bigEndian(one.release, 2));
    strictEqual(hex(sha256(measured)), one.measurement);
  }
}

function readHandover(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const end = message.length - 65;
  if (end < 5 || view.getUint8(0) !== 1) throw new Refused("bad_handover");
  const count = view.getUint16(3);
  if (count === 0 || end !== 5 + 40 * count) throw new Refused("bad_handover");
  const keys = [];
  for (let at = 5; at < end; at += 40) {
    keys.push({ secret: hex(message.subarray(at, at + 32)), announced_from: Number(view.getBigUint64(at + 32)) });
  }
  return { release: view.getUint16(1), keys };
}

function checkHandover(one) {
  const { release, keys } = readHandover(unhex(one.message));
  strictEqual(release, one.release);
  deepStrictEqual(keys, one.keys);
}

function checkJobId(one) {
  strictEqual(solidityPackedKeccak256(["address", "bytes32"], [one.owner, one.c]), one.job_id);
}

export const checks = {
  "derivation.json": checkDerivation,
  "sealed_box_keys.json": checkSealedBoxKeys,
  "escrow_evidence.json": checkEscrowEvidence,
  "handover.json": checkHandover,
  "job_id.json": checkJobId,
};
