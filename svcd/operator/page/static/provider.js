// The provider's page: the state of this daemon, read every few seconds while the page is visible.

import { gauge, h, hex, replaceContent, table } from "./dom.js";
import { number, setDecimals, share, span, tokens } from "./format.js";
import { showConnection } from "./frame.js";
import { readJson } from "./http.js";
import { dayBars, timeLine } from "./series.js";
import { countdown, tickTimes, when } from "./times.js";

const REFRESH_MS = 3_000;
const DAYS = 30;
const STEPS = {
  claim: ["open", "Being claimed"],
  run: ["claimed", "Running"],
  settle: ["settled", "Being settled"],
  refund: ["failed", "Being refunded"],
};
const RESULTS = { right: ["settled", "right"], WRONG: ["failed", "wrong"], unknown: ["cancelled", "unknown"] };

// Draw a section again only if its own data changed.
const SECTIONS = [
  ["state", null, (state) => [state.problem, state.idle, state.slots.held, state.provider_id, state.market === null], headline],
  ["figures", null, (state) => [today(), state.journal?.days, state.slots, state.market?.reputation, state.journal?.standing.at(-1)], tiles],
  ["jobs", "Jobs in progress", (state) => [state.journal?.jobs, state.slots.held], jobs],
  ["models", "Models", (state) => [state.models, state.market?.prices], models],
  ["earnings", "Earnings", (state) => [today(), state.journal?.days, innerWidth < 740], earnings],
  ["standing", "Reputation and capacity", (state) => [state.journal?.standing, innerWidth < 740], standing],
  ["failures", "Last failures", (state) => state.journal?.failures, failures],
  ["checks", "Checks", (state) => state.market && [state.market.read_at, state.market.checks], checks],
];

const main = document.querySelector("#content");
const shown = new Map();
let timer = null;

for (const [name, title] of SECTIONS) {
  const body = h("div", { id: name });
  main.append(h("div", { hidden: true }, title && h("h2", {}, title), body));
  shown.set(name, { body, seen: null });
}

async function refresh() {
  clearTimeout(timer);
  try {
    const state = await readJson("svcd", "state.json", { cache: "no-store" });
    show(state);
    showConnection("live", "live");
  } catch (error) {
    showConnection("reconnecting", error.status === 0 ? "svcd does not answer: svcd has stopped, or its port cannot be reached" : error.message);
    if (error.status === undefined) console.error(error);
  }
  if (!document.hidden) timer = setTimeout(refresh, REFRESH_MS);
}

function show(state) {
  if (state.token !== null) setDecimals(state.token.decimals);
  document.querySelector("h1").textContent = state.provider_id === null ? "Provider" : `Provider ${state.provider_id}`;
  const who = document.querySelector("#who");
  if (!who.hasChildNodes()) replaceContent(who, ["Wallet ", hex(state.wallet, { what: "wallet" }), ` at the market of ${state.coordinator}`, `, svcd ${state.release}`].map((each) => (typeof each === "string" ? document.createTextNode(each) : each)));
  for (const [name, , pick, draw] of SECTIONS) {
    const part = shown.get(name);
    const seen = JSON.stringify([pick(state) ?? null, state.token]);
    if (seen === part.seen) continue;
    part.seen = seen;
    const drawn = draw(state);
    part.body.parentElement.hidden = drawn === null;
    if (drawn !== null) replaceContent(part.body, drawn);
  }
}

function headline(state) {
  const [kind, word, said] = condition(state);
  return [
    h("p", { class: "headline" }, h("span", { class: `badge ${kind}` }, word), h("span", {}, said)),
    state.idle.length > 0 && h("div", { class: "card", id: "idle" },
      h("h2", {}, state.idle.some((one) => one.blocks) ? "Why svcd accepts no orders" : state.slots.held > 0 ? "Why other models are idle" : "Why svcd is idle"),
      h("ul", {}, state.idle.map((one) => h("li", {}, h("strong", {}, capital(one.said)), one.remedy && h("span", { class: "said" }, capital(one.remedy)))))),
  ];
}

function condition(state) {
  if (state.provider_id === null) return ["cancelled", "Waiting", "The coordinator has not answered yet."];
  if (state.idle.some((one) => one.blocks && one.model === null)) return ["failed", "Not working", "svcd accepts no orders."];
  if (state.problem !== null) return ["failed", "Unhealthy", state.idle.length > 0 ? "svcd has the problems below." : capital(state.problem)];
  if (state.slots.held > 0) return ["settled", "Working", `${number(state.slots.held)} ${state.slots.held === 1 ? "job" : "jobs"} in progress.`];
  return ["open", "Ready", "svcd polls for orders and has none."];
}

function tiles(state) {
  const days = state.journal?.days ?? [];
  const earned = (rows) => rows.reduce((sum, row) => sum + BigInt(row.earned), 0n);
  const settled = (rows) => rows.reduce((sum, row) => sum + row.settled, 0);
  const now = days.filter((row) => row.day === today());
  const unit = state.token?.name ?? "";
  const limit = state.slots.granted === null ? state.slots.configured : Math.min(state.slots.granted, state.slots.configured);
  const reputation = state.market?.reputation ?? state.journal?.standing.at(-1)?.reputation ?? null;
  return h("dl", { class: "tiles" },
    tile("Earned today", tokens(earned(now)), `${unit}, ${number(settled(now))} settled`),
    tile(`Earned in ${DAYS} days`, tokens(earned(days)), `${unit}, ${number(settled(days))} settled`),
    tile("Slots in use", `${number(state.slots.held)} / ${number(limit)}`, state.slots.granted !== null && state.slots.granted < state.slots.configured
      ? `${number(state.slots.granted)} granted of ${number(state.slots.configured)}` : "all granted"),
    tile("Reputation", reputation === null ? "–" : number(reputation), "of 1000"));
}

function jobs(state) {
  if (state.journal === null) return unreadable();
  const more = state.slots.held - state.journal.jobs.length;
  return [
    table("Jobs in progress", [
      { label: "Job", cell: (row) => hex(row.job_id, { what: "job id" }) },
      { label: "Step", cell: (row) => badge(...STEPS[row.step]) },
      { label: "Model", wide: true, cell: (row) => h("span", { class: "name" }, row.model) },
      { label: `At most (${state.token?.name ?? "units"})`, num: true, wide: true, cell: (row) => tokens(row.at_most) },
      { label: "Time left", num: true, cell: (row) => countdown(row.deadline, "over") },
    ], state.journal.jobs, "No job in progress."),
    more > 0 && state.journal.jobs.length > 0 && h("p", { class: "faint" }, `and ${number(more)} more`),
  ];
}

function models(state) {
  return table("Models", [
    { label: "Model", cell: (row) => h("span", { class: "name" }, row.name) },
    { label: "Slots in use", cell: (row) => bar(row.held, row.slots, `${number(row.held)} / ${number(row.slots)}`, "slots in use") },
    { label: "Load", wider: true, cell: (row) => (row.load === null ? h("span", { class: "faint" }, "–") : bar(row.load, 1, share(Math.round(row.load * 100), 100), "load")) },
    { label: "State", cell: (row) => (!row.offered ? badge("cancelled", "not in the market") : row.circuit_open ? badge("failed", "backend fails") : badge("settled", "offered")) },
    { label: "Cheaper providers", wide: true, cell: (row) => positions(state, row) },
    { label: "Last orders", wide: true, cell: (row) => (row.last_orders_at === null ? h("span", { class: "faint" }, "none yet") : when(row.last_orders_at)) },
  ], state.models, "No model is configured.");
}

function positions(state, model) {
  const prices = state.market?.prices.filter((price) => price.model === model.name) ?? [];
  if (prices.length === 0) return h("span", { class: "faint" }, state.market === null ? "…" : "–");
  const words = (price) => (price.competitors === "0" ? "no other provider" : `${price.above} of ${price.competitors}`);
  if (prices.every((price) => words(price) === words(prices[0]))) return h("span", { class: "num" }, words(prices[0]));
  return prices.map((price) => h("span", { class: "said num", title: price.lowest_in === null ? null : `lowest: ${tokens(price.lowest_in)} in, ${tokens(price.lowest_out)} out` },
    `${span(price.sla)}: ${words(price)}`));
}

function earnings(state) {
  if (state.journal === null) return unreadable();
  const days = lastDays();
  const rows = new Map(state.journal.days.map((row) => [`${row.day} ${row.model}`, row]));
  const names = [...new Set(state.journal.days.map((row) => row.model))].sort();
  const series = (value) => names.map((name) => ({ name, values: days.map((day) => value(rows.get(`${day} ${name}`))) }));
  const sum = (name, member) => ({ name, values: days.map((day) => state.journal.days.filter((row) => row.day === day).reduce((all, row) => all + BigInt(row[member]), 0n)) });
  const all = state.journal.days.reduce((total, row) => total + BigInt(row.earned), 0n);
  return h("div", { class: "charts" },
    dayBars(`Earned by day, ${state.token?.name ?? "base units"}`, days, series((row) => BigInt(row?.earned ?? 0)), tokens,
      { now: tokens(all), empty: "Nothing earned yet. Settled jobs appear here." }),
    dayBars("Jobs by day", days, [sum("settled", "settled"), { ...sum("ended without a settle", "failed"), bad: true }], number,
      { empty: "No job has ended yet." }));
}

function standing(state) {
  if (state.journal === null) return unreadable();
  const points = (member) => state.journal.standing.map((row) => ({ at: row.at, value: row[member] }));
  const to = Math.max(Math.floor(Date.now() / 1000), state.journal.standing.at(-1)?.at ?? 0);
  const options = { steps: true, to, from: Math.max(state.journal.standing[0]?.at ?? 0, to - DAYS * 86_400), empty: "Not read from the market yet." };
  return h("div", { class: "charts" },
    timeLine("Reputation", points("reputation"), whole, options),
    timeLine("Granted slots", points("capacity"), whole, options));
}

function failures(state) {
  if (state.journal === null) return unreadable();
  return table("Last failures", [
    { label: "Job", cell: (row) => [hex(row.job_id, { what: "job id" }), h("span", { class: "under faint" }, row.model)] },
    { label: "When", wide: true, cell: (row) => when(row.at) },
    { label: "Model", wide: true, cell: (row) => h("span", { class: "name" }, row.model) },
    { label: "Reason", cell: (row) => [h("code", {}, row.reason), h("span", { class: "said" }, capital(row.cause)), h("span", { class: "said" }, row.remedy)] },
  ], state.journal.failures, "No job failed in the last three days.");
}

function checks(state) {
  if (state.market === null) return h("p", { class: "empty" }, "Checking …");
  const order = { WRONG: 0, unknown: 1 };
  const rows = state.market.checks;
  const wrong = rows.filter((row) => row.result === "WRONG");
  const all = [...rows].sort((one, other) => (order[one.result] ?? 2) - (order[other.result] ?? 2));
  const unsure = rows.filter((row) => row.result === "unknown").length;
  return [
    h("p", { class: "headline" },
      wrong.length === 0 ? badge("settled", "Nothing is wrong") : badge("failed", `${number(wrong.length)} wrong`),
      h("span", {}, `${number(rows.length)} checks, ${number(unsure)} of them unknown. svcd check runs the same checks. Last run: `, when(state.market.read_at))),
    wrong.length > 0 && h("div", { class: "notice" }, wrong.map((row) => h("p", {}, h("strong", {}, capital(row.what)), `: ${row.detail}${row.remedy ? `. ${capital(row.remedy)}` : ""}`))),
    h("details", { class: "card", "data-key": "all checks" }, h("summary", {}, "All checks"),
      table("Checks", [
        { label: "Check", cell: (row) => h("span", { class: "name" }, row.what) },
        { label: "Result", cell: (row) => (row.result === null ? h("span", { class: "faint" }, "–") : badge(...RESULTS[row.result])) },
        { label: "Found", cell: (row) => h("span", { class: "break" }, row.detail, row.remedy && h("span", { class: "said" }, capital(row.remedy))) },
      ], all, "")),
  ];
}

function unreadable() {
  return h("p", { class: "empty" }, "The journal cannot be read now. See the daemon’s log.");
}

function bar(value, all, words, what) {
  return h("span", { class: "capacity" },
    gauge(value, all, `${what}: ${words}`),
    h("span", { class: "num" }, words));
}

function badge(kind, word) {
  return h("span", { class: `badge ${kind}` }, word);
}

function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("strong", { class: "num" }, value), h("span", {}, note)));
}

function capital(words) {
  return words === "" ? "" : words[0].toUpperCase() + words.slice(1);
}

function whole(value) {
  return number(Math.round(value));
}

function today() {
  return new Date().toISOString().slice(0, 10);
}

function lastDays() {
  return Array.from({ length: DAYS }, (_, n) => new Date(Date.now() - (DAYS - 1 - n) * 86_400_000).toISOString().slice(0, 10));
}

document.addEventListener("visibilitychange", () => !document.hidden && refresh());
addEventListener("online", refresh);
tickTimes();
refresh();
