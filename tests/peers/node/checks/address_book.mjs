import { strictEqual } from "node:assert";

import { utf8 } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { hexOf, uint } from "../scalars.mjs";
import { parse } from "../strict_json.mjs";

function within(condition) {
  if (!condition) throw new Refused("malformed");
}

function integer(least, most) {
  return (value) => {
    const number = uint(53, JSON.stringify(value));
    within(number >= least && number <= most);
  };
}

function contract(value) {
  within(!/^0*$/.test(hexOf(20, JSON.stringify(value))));
}

function text(value) {
  within(typeof value === "string" && value !== "");
}

const TOKEN_DOMAIN = { name: text, version: text };
const BOOK = {
  chainId: integer(1n, 2n ** 53n),
  deployBlock: integer(0n, 2n ** 53n),
  jobRegistry: contract,
  providerRegistry: contract,
  askRegistry: contract,
  paytoken: contract,
  paymentTokenDecimals: integer(0n, 36n),
  tokenDomain: TOKEN_DOMAIN,
};

// Return the first failure with the key at fault, or null.
function fault(value, keys, param) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return { failure: "malformed", param };
  const under = (key) => (param === null ? key : `${param}.${key}`);
  const unknown = Object.keys(value).find((key) => !Object.hasOwn(keys, key));
  if (unknown !== undefined) return { failure: "unknown_key", param: under(unknown) };
  const missing = Object.keys(keys).find((key) => !Object.hasOwn(value, key));
  if (missing !== undefined) return { failure: "missing", param: under(missing) };
  for (const [key, read] of Object.entries(keys)) {
    const found = typeof read === "function" ? faultOf(read, value[key], under(key)) : fault(value[key], read, key);
    if (found !== null) return found;
  }
  return null;
}

function faultOf(read, value, param) {
  try {
    read(value);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { failure: "malformed", param };
  }
  return null;
}

function parsed(book) {
  try {
    return parse(utf8(book));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    throw new Refused("not_json");
  }
}

function checkAddressBook(one) {
  const found = fault(parsed(one.text), BOOK, null);
  if (found === null) return;
  strictEqual(found.param, one.param);
  throw new Refused(found.failure);
}

export const checks = { "address_book.json": checkAddressBook };
