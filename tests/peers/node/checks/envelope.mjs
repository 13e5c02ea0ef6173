import { deepStrictEqual, strictEqual } from "node:assert";

import { unhex, utf8 } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { publicKey } from "../sealed_box.mjs";
import { canonical, parse } from "../strict_json.mjs";

export const vectors = "envelope.json";

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

export function accept(one) {
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
