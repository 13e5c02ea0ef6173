import { deepStrictEqual } from "node:assert";

import { Refused } from "../refused.mjs";
import { canonical } from "../strict_json.mjs";

const MEMBERS = { completed: ["output", "usage"], failed: ["error"], not_run: [] };

const require = (holds) => {
  if (!holds) throw new Refused("malformed_bundle");
};
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isUnits = (value) => Number.isSafeInteger(value) && value >= 0 && value < 2 ** 32;

function hasMembers(value, required, optional) {
  require(isObject(value) && required.every((key) => key in value));
  require(Object.keys(value).every((key) => required.includes(key) || optional.includes(key)));
  const { custom_id: id = "x" } = value;
  require(typeof id === "string" && id.length > 0 && [...id].length <= 64);
}

function itemsOf(value) {
  hasMembers(value, ["svc_bundle", "items"], []);
  require(value.svc_bundle === 1 && Array.isArray(value.items));
  require(value.items.length >= 1 && value.items.length <= 500);
  return value.items;
}

function largest(evidence) {
  const told = isObject(evidence) ? evidence.svc_bundle : null;
  if (!isObject(told) || told.v !== 1 || !Number.isSafeInteger(told.items) || told.items < 2) return 0;
  return Math.min(told.items, 500);
}

function unitsOfItem(item, endpoint) {
  hasMembers(item, ["input"], ["custom_id", "units_out"]);
  require(isObject(item.input) && !("svc_bundle" in item.input));
  require(item.units_out === undefined || isUnits(item.units_out));
  const units_in = Math.max(1, Math.ceil(Buffer.byteLength(canonical(item.input)) / 4));
  const cap = item.units_out ?? item.input.max_output_tokens ?? 4096;
  return { units_in, units_out: endpoint === "/v1/embeddings" ? 0 : cap };
}

function chargeOfItem(item) {
  require(isObject(item) && item.status in MEMBERS);
  hasMembers(item, ["status", "units_in", "units_out", ...MEMBERS[item.status]], ["custom_id"]);
  require(isUnits(item.units_in) && isUnits(item.units_out));
  require(item.status === "completed" || item.units_in + item.units_out === 0);
  require(item.status !== "failed" || (isObject(item.error) && typeof item.error.code === "string"));
  return item;
}

function outputUnits(items, rateIn, rateOut) {
  const sum = (name) => items.reduce((total, item) => total + BigInt(item[name]), 0n);
  require(rateIn === 0n || rateOut > 0n);
  const units = sum("units_out") + (rateOut ? (sum("units_in") * rateIn + rateOut - 1n) / rateOut : 0n);
  require(units < 1n << 32n);
  return Number(units);
}

function checkBundle(one) {
  if (one.kind === "evidence") return deepStrictEqual(largest(one.evidence), one.largest);
  const rates = [BigInt(one.rate_in), BigInt(one.rate_out)];
  if (one.kind === "order") {
    const units = outputUnits(itemsOf(one.input).map((item) => unitsOfItem(item, one.endpoint)), ...rates);
    return deepStrictEqual([1, units], [one.units_in, one.units_out]);
  }
  deepStrictEqual(outputUnits(itemsOf(one.output).map(chargeOfItem), ...rates), one.completion_tok);
}

export const checks = { "bundle.json": checkBundle };
