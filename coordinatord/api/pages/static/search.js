// Search of the book: a job's id, an owner's address or a provider's number, or the beginning of an id.

import { get } from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";

// Returns {to: address of a view}, {who: filter of the book}, {matches, more} or {wrong: error message}.
export async function find(text) {
  const typed = text.trim().toLowerCase();
  if (typed === "") return { who: "" };
  if (/^[0-9]{1,9}$/.test(typed)) return { who: typed };
  // Ids are shown as 0x1234…5678.
  const parts = typed.match(/^(?:0x)?([0-9a-f]*)(?:(?:…|\.\.+)([0-9a-f]*))?$/);
  if (parts === null) return { wrong: "Enter the beginning of an id in hex, or a provider’s number." };
  const [, prefix, end = ""] = parts;
  if (prefix.length === 64 && end === "") return { to: `#/job/0x${prefix}` };
  if (prefix.length === 40 && end === "") return { who: `0x${prefix}` };
  if (prefix.length < 4) return { wrong: "Enter at least four hex digits of an id." };
  if (prefix.length > 64) return { wrong: "An id has at most 64 hex digits." };
  const found = await get(`/evm/search?prefix=0x${prefix}`);
  const matches = found.matches.filter((one) => one.kind === "provider" || one.id.endsWith(end));
  if (matches.length === 0 && found.more) return { wrong: `Too many ids begin with 0x${prefix} to find one that ends with ${end}. Type more digits before the “…”.` };
  if (matches.length === 0) return { wrong: `No job, owner or provider begins with 0x${prefix}${end && ` and ends with ${end}`}.` };
  if (matches.length === 1 && !found.more) return target(matches[0]);
  return { matches, more: found.more, prefix: `0x${prefix}` };
}

function target(match) {
  if (match.kind === "job") return { to: `#/job/${match.id}` };
  if (match.kind === "provider") return { to: `#/providers/${match.id}` };
  return { who: match.id };
}

// List of several ids with the same beginning. `choose` gets the value that `find` returns for a single match.
export function choices({ matches, more, prefix }, choose) {
  return h("div", { class: "card" },
    h("p", {}, h("strong", {}, `${number(matches.length)}${more ? " or more" : ""} ids begin with ${prefix}.`), " Choose one, or type more digits."),
    h("ul", {}, matches.map((one) => h("li", {},
      h("button", { type: "button", class: "link", "data-key": `${one.kind} ${one.id}`, onclick: () => choose(target(one)) }, `${one.kind} `, h("code", { class: "break" }, one.id))))));
}
