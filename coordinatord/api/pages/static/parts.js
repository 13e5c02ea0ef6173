// Parts shared by several views: links, states, reliability.

import { gauge, h } from "./dom.js";
import { costOf, maxPayment, number, share, span, stateOf, tokens } from "./format.js";

export function badge(job) {
  const [kind, word] = stateOf(job);
  return h("span", { class: `badge ${kind}` }, word);
}

export function modelLink(id, models) {
  const known = models.get(String(id));
  return h("a", { href: `#/models/${id}`, class: "name" }, known?.id ?? `model ${id}`);
}

export function providerLink(id) {
  return String(id) === "0" ? h("span", { class: "faint" }, "–") : h("a", { href: `#/providers/${id}` }, `provider ${id}`);
}

export function jobLink(id) {
  return h("a", { href: `#/job/${id}`, title: id }, h("code", {}, `${id.slice(0, 8)}…${id.slice(-4)}`));
}

// Link to a job, with the model's name below for tables too narrow for a column of names.
export function jobAndModel(row, models) {
  return [jobLink(row.job_id), h("span", { class: "under faint" }, models.get(row.model_id)?.id ?? `model ${row.model_id}`)];
}

// Total cost of a job for its owner: {amount, words, title}. Rows of the book have no fees, so this uses the current
// fees.
export function price(row, about) {
  const withFees = (base) => base + (base * BigInt(about.fee_bps)) / 10_000n + BigInt(about.gas_fee);
  if (row.state === 2) return { amount: withFees(costOf(row)), words: "", title: "total paid, with the market’s current fees" };
  if (row.state === 3) return { amount: null, words: row.claimed_at === "0" ? "nothing" : "refunded", title: "the owner paid nothing" };
  return { amount: withFees(maxPayment(row)), words: "up to ", title: "maximum, with the market’s current fees" };
}

export function rates(row) {
  return h("span", {}, tokens(row.rate_in), h("span", { class: "faint" }, " / "), tokens(row.rate_out));
}

export function windowOf(seconds) {
  return span(seconds);
}

// Reliability, counted by the coordinator from the chain. Providers without jobs are marked as such.
export function reliability(row) {
  const record = row.reliability;
  if (!record) return h("span", { class: "faint" }, "–");
  const [good, bad, slow] = [record.settled, record.failed, record.reclaimed].map(Number);
  const all = good + bad + slow;
  if (all === 0) return h("span", { class: "faint" }, "no jobs yet");
  const median = record.median_secs === null || record.median_secs === undefined ? "" : `, ${span(record.median_secs)}`;
  return h("span", { title: `${good} settled, ${bad} failed, ${slow} reclaimed in ${span(record.window_secs)}` },
    `${share(good, all)} of ${number(all)}${median}`);
}

// Slots in use, as a bar and as numbers.
export function capacity(row) {
  const [used, all] = [Number(row.active_jobs), Number(row.capacity)];
  return h("span", { class: "capacity" },
    gauge(used, all, `${used} of ${all} slots in use`),
    h("span", { class: "num" }, `${number(used)} / ${number(all)}`));
}

export function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("strong", { class: "num" }, value), note && h("span", {}, note)));
}
