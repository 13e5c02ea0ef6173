import { strictEqual } from "node:assert";

import nacl from "tweetnacl";

import { hex, unhex } from "../bytes.mjs";
import { dataKey, derive } from "../derivation.mjs";
import { Refused } from "../refused.mjs";

export const vectors = "derivation.json";

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

export function accept(one) {
  const key = KINDS[one.kind](one);
  strictEqual(hex(key), one.key);
  if (one.public !== undefined) strictEqual(hex(nacl.scalarMult.base(key)), one.public);
}
