import { hkdf } from "@noble/hashes/hkdf.js";
import { sha256 } from "@noble/hashes/sha2.js";

import { bigEndian, concat, utf8 } from "./bytes.mjs";

export function derive(secret, label, ...rest) {
  return hkdf(sha256, secret, undefined, concat(utf8(label), ...rest), 32);
}

export function dataKey(label, seed, chainId, registry, bound) {
  return derive(seed, label, bigEndian(chainId, 32), registry, bound);
}
