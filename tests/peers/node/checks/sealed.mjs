import { deepStrictEqual, strictEqual } from "node:assert";

import { keccak_256 } from "@noble/hashes/sha3.js";

import { concat, hex, unhex, utf8 } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { publicKey } from "../sealed_box.mjs";
import { checkHead, isSealedLength, open, sealedOf } from "../sealed_stream.mjs";
import { canonical, parse } from "../strict_json.mjs";

function checkContainer(one) {
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

const isHex = (length) => (value) =>
  typeof value === "string" && value.length === 2 + 2 * length && /^0x[0-9a-f]*$/.test(value);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isText = (value) => typeof value === "string" && value !== "";
const isKey = (value) => isHex(32)(value) && publicKey(unhex(value.slice(2))) !== null;

const FORMATS = {
  envelope: {
    failure: "malformed_envelope",
    required: { v: (v) => v === 1, owner: isHex(20), model: isText, input: isObject, result_key: isKey },
    optional: { custom_id: (id) => isText(id) && [...id].length <= 64 },
  },
  result: {
    failure: "malformed_result",
    required: { v: (v) => v === 1, job_id: isHex(32), output: () => true, usage: isObject },
    optional: {},
  },
};

function isWellFormed(text, { required, optional }) {
  const value = parse(utf8(text));
  if (!isObject(value) || canonical(value) !== text) return false;
  if (!Object.keys(required).every((name) => Object.hasOwn(value, name))) return false;
  return Object.entries(value).every(([name, field]) => (required[name] ?? optional[name])?.(field) ?? false);
}

function checkEnvelope(one) {
  const format = FORMATS[one.kind];
  let wellFormed = false;
  try {
    wellFormed = isWellFormed(one.text, format);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
  }
  if (!wellFormed) throw new Refused(format.failure);
  deepStrictEqual(JSON.parse(one.text), one.fields);
  strictEqual(canonical(one.fields), one.text);
}

function checkResult(one) {
  const sealed = sealedOf(one);
  checkHead(sealed);
  open(one, "svc-result-v1", one.job_id, sealed);
}

export const checks = {
  "container.json": checkContainer,
  "envelope.json": checkEnvelope,
  "result.json": checkResult,
};
