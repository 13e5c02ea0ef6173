// Strict readers for integers, hex and base64. They read a JSON text, because JSON.parse turns 1.0 into 1 and
// 2^53 + 1 into 2^53.

import { hex } from "./bytes.mjs";
import { Refused } from "./refused.mjs";

function stringIn(text) {
  const value = JSON.parse(text);
  if (typeof value !== "string") throw new Refused("wrong_type");
  return value;
}

function matched(value, spelling) {
  if (!spelling.test(value)) throw new Refused("spelling");
  return value;
}

export function uint(bits, text) {
  const isNumber = /^-?[0-9]+$/.test(text) && text !== "-0";
  const number = BigInt(isNumber ? text : matched(stringIn(text), /^(0|[1-9][0-9]*)$/));
  if (isNumber && (number < 0n || number > Number.MAX_SAFE_INTEGER)) throw new Refused("out_of_range");
  if (number >= 1n << BigInt(bits)) throw new Refused("out_of_range");
  return number;
}

function sized(digits, isRightLength) {
  if (!isRightLength(digits.length / 2)) throw new Refused("length");
  return digits.toLowerCase();
}

const prefixed = (text) => matched(stringIn(text), /^0x([0-9a-fA-F]{2})*$/).slice(2);

export const hexOf = (length, text) => sized(prefixed(text), (bytes) => bytes === length);
export const hexUpto = (longest, text) => sized(prefixed(text), (bytes) => bytes <= longest);
export const bareHex = (length, text) =>
  sized(matched(stringIn(text), /^([0-9a-fA-F]{2})*$/), (bytes) => bytes === length);

export function base64(longest, text) {
  const value = matched(stringIn(text), /^[A-Za-z0-9+/]*={0,2}$/);
  const decoded = Buffer.from(value, "base64");
  if (decoded.toString("base64") !== value) throw new Refused("spelling");
  return sized(hex(decoded), (bytes) => bytes <= longest);
}
