import { strictEqual } from "node:assert";

import { keccak_256 } from "@noble/hashes/sha3.js";

import { concat, hex } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { checkHead, isSealedLength, open, sealedOf } from "../sealed_stream.mjs";

export const vectors = "container.json";

export function accept(one) {
  const sealed = sealedOf(one);
  checkHead(sealed);
  if (!isSealedLength(sealed.length)) throw new Refused("bad_container");
  const ctHash = keccak_256(sealed.subarray(81));
  const c = keccak_256(concat(sealed.subarray(0, 81), ctHash));
  if (hex(c) !== one.c) throw new Refused("commitment_mismatch");
  strictEqual(hex(ctHash), one.ct_hash);
  strictEqual(hex(sealed.subarray(1, 81)), one.seed_wrap);
  open(one, "svc-dek-v1", one.owner, sealed);
}
