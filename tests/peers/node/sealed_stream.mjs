// The format that containers and results share: 0x01 ‖ seed_wrap (80) ‖ header (24) ‖ frames.

import { strictEqual } from "node:assert";

import { sha256 } from "@noble/hashes/sha2.js";

import { concat, hex, pattern, unhex } from "./bytes.mjs";
import { dataKey } from "./derivation.mjs";
import { Refused } from "./refused.mjs";
import { openSealed } from "./sealed_box.mjs";
import { FINAL, MESSAGE, SecretStream } from "./secretstream.mjs";

const FRAME = 65536;
const SEALED_FRAME = FRAME + 17;

export function checkHead(sealed) {
  if (sealed.length < 122) throw new Refused("too_short");
  if (sealed[0] !== 1) throw new Refused("bad_version");
}

export function isSealedLength(length) {
  const rest = (length - 105) % SEALED_FRAME;
  return length < 105 + SEALED_FRAME ? rest >= 17 : rest === 0 || rest > 17;
}

function seal(seedWrap, header, dek, plaintext) {
  const stream = new SecretStream(dek, header);
  const parts = [Uint8Array.of(1), seedWrap, header];
  for (let at = 0; at === 0 || at < plaintext.length; at += FRAME) {
    const last = at + FRAME >= plaintext.length;
    parts.push(stream.push(plaintext.subarray(at, at + FRAME), last ? FINAL : MESSAGE));
  }
  return concat(...parts);
}

// Return the case's bytes: given, sealed again under the given header, or a pattern.
export function sealedOf(one) {
  if (one.sealed !== undefined) return unhex(one.sealed);
  if (one.sealed_length !== undefined) return concat([1], pattern(one.sealed_length - 1));
  const sealed = seal(unhex(one.seed_wrap), unhex(one.header), unhex(one.dek), pattern(one.plaintext_length));
  strictEqual(hex(sha256(sealed)), one.sealed_sha256);
  return sealed;
}

function openStream(dek, ciphertext) {
  const stream = new SecretStream(dek, ciphertext.subarray(0, 24));
  const opened = [];
  let at = 24;
  let tag;
  do {
    const frame = ciphertext.subarray(at, at + SEALED_FRAME);
    const pulled = stream.pull(frame);
    if (pulled === null) throw new Refused("undecryptable");
    opened.push(pulled[0]);
    tag = pulled[1];
    if (tag === FINAL && opened.length > 1 && frame.length === 17) throw new Refused("undecryptable");
    at += frame.length;
  } while (tag === MESSAGE && at < ciphertext.length);
  if (tag !== FINAL || at !== ciphertext.length) throw new Refused("undecryptable");
  return concat(...opened);
}

// Open a case with its secret, and check the key and the plaintext.
export function open(one, label, bound, sealed) {
  const seed = openSealed(unhex(one.secret), sealed.subarray(1, 81));
  if (seed === null) throw new Refused("unseal_failed");
  const dek = dataKey(label, seed, one.chain_id, unhex(one.job_registry), unhex(bound));
  const plaintext = openStream(dek, sealed.subarray(81));
  strictEqual(hex(seed), one.seed);
  strictEqual(hex(dek), one.dek);
  const expected = one.plaintext_length === undefined ? one.plaintext : hex(pattern(one.plaintext_length));
  strictEqual(hex(plaintext), expected);
}
