// X25519 keys and libsodium's sealed boxes, based on tweetnacl.

import { blake2b } from "@noble/hashes/blake2.js";
import nacl from "tweetnacl";

import { concat } from "./bytes.mjs";
import { Refused } from "./refused.mjs";

export function publicKey(raw) {
  if (raw.length !== 32) throw new Refused("length");
  // With a low-order point, the shared secret is zero for every key, so testing one key is enough.
  if (nacl.scalarMult(new Uint8Array(32).fill(1), raw).every((byte) => byte === 0)) throw new Refused("low_order");
  return raw;
}

// Return the plaintext, or null if the box does not open with this key.
export function openSealed(secret, sealed) {
  if (sealed.length < 48) return null;
  const ephemeral = sealed.subarray(0, 32);
  const nonce = blake2b(concat(ephemeral, nacl.scalarMult.base(secret)), { dkLen: 24 });
  return nacl.box.open(sealed.subarray(32), nonce, ephemeral, secret);
}
