// Strict JSON on top of JSON.parse: a scan of the tokens finds what JSON.parse accepts by mistake.

import { Refused } from "./refused.mjs";

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs;

export function parse(bytes) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Refused("not_utf8");
  }
  if (/^\s*[[{:,\s]*-?(?:NaN|Infinity)\b/.test(text)) throw new Refused("constant");
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Refused("syntax");
  }
  checkTokens(text);
  return value;
}

function checkTokens(text) {
  const open = []; // the keys so far of each open object, null for an array
  const tokens = text.match(TOKEN);
  tokens.forEach((token, at) => {
    if (token === "{" || token === "[") {
      if (open.length === 32) throw new Refused("too_deep");
      open.push(token === "{" ? new Set() : null);
    } else if (token === "}" || token === "]") open.pop();
    else if (token.startsWith('"')) checkText(JSON.parse(token), tokens[at + 1] === ":" ? open.at(-1) : null);
    else if (/^[-0-9]/.test(token) && !Number.isFinite(Number(token))) throw new Refused("infinite");
  });
}

function checkText(text, keys) {
  if (text.includes("\0")) throw new Refused("nul");
  if (!text.isWellFormed()) throw new Refused("lone_surrogate");
  if (keys?.has(text)) throw new Refused("duplicate_key");
  keys?.add(text);
}

// RFC 8785 defines JavaScript's order of strings and spelling of numbers as canonical.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const members = Object.keys(value).sort();
    return `{${members.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
  }
  const spelled = JSON.stringify(value);
  if (typeof value === "number" && /^-?[0-9]+$/.test(spelled) && !Number.isSafeInteger(value)) {
    throw new Refused("unsafe_integer");
  }
  return spelled;
}
