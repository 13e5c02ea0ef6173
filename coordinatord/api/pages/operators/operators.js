// The operators' page shows the metrics of this process. It reads the metrics every few seconds while it is open.

import { facts, h, hex, replaceContent, table } from "./dom.js";
import { read } from "./exposition.js";
import { showConnection } from "./frame.js";
import { readJson } from "./http.js";
import { timeLine } from "./series.js";

const REFRESH_MS = 5_000;
const QUEUES = { exit: "exits: settle, fail, reclaim", op: "other ops", post: "posts", batch_post: "posts of batches" };

const figures = document.querySelector("#figures");
let before = null; // previous sample: rates are differences of two samples

async function refresh() {
  try {
    const answer = await fetch("metrics", { cache: "no-store", signal: AbortSignal.timeout(REFRESH_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    const now = { at: performance.now(), metrics: read(await answer.text()) };
    const history = await readJson("this process", "history.json", { cache: "no-store" });
    replaceContent(figures, show(now, before, history.samples));
    before = now;
    showConnection("live", "live");
  } catch {
    showConnection("reconnecting", "this process does not answer: it is stopped, or its metrics port is out of reach");
  }
  setTimeout(refresh, REFRESH_MS);
}

function show(now, last, samples) {
  const m = now.metrics;
  const wrong = problems(m);
  const perSecond = (name) => {
    if (last === null) return "–";
    const passed = (now.at - last.at) / 1000;
    return ((m.sum(name) - last.metrics.sum(name)) / passed).toFixed(1);
  };
  return [
    wrong.length === 0
      ? h("p", { class: "headline" }, h("span", { class: "badge settled" }, "Nothing is wrong"), h("span", {}, "according to these figures."))
      : h("div", { class: "notice", role: "alert" }, wrong.map((each) => h("p", {}, each))),
    h("dl", { class: "tiles" },
      tile("Waiting relays", whole(m.sum("coordinatord_relay_queue_depth")), `oldest: ${seconds(m.one("coordinatord_relay_queue_age_seconds"))}`),
      tile("Pending", whole(m.sum("coordinatord_relay_transactions_pending")), "transactions sent, not mined yet"),
      tile("Index lag", whole(m.one("coordinatord_index_lag_blocks")), "blocks behind the node"),
      tile("Requests", perSecond("coordinatord_http_request_seconds_count"), "a second")),
    h("h2", {}, "The last hour"),
    h("div", { class: "charts" }, charts(samples)),
    h("h2", {}, "Queue"),
    table("Waiting relays by priority", [
      { label: "Priority", cell: (each) => QUEUES[each.labels.priority] ?? each.labels.priority },
      { label: "Waiting", num: true, cell: (each) => whole(each.value) },
    ], m.all("coordinatord_relay_queue_depth"), "This process does not relay. Another process holds the role, or this process has just started."),
    h("h2", {}, "Ended relays"),
    table("Ended relays by kind and outcome", [
      { label: "Kind", cell: (each) => each.labels.kind },
      { label: "Outcome", cell: (each) => each.labels.outcome },
      { label: "Relays", num: true, cell: (each) => whole(each.value) },
    ], m.all("coordinatord_relay_outcomes_total"), "No relay has ended since this process started."),
    h("h2", {}, "Fees and funds"),
    table("Accounts", [
      { label: "Account", cell: (each) => hex(each.labels.account, { what: "account" }) },
      { label: "Balance", num: true, cell: (each) => coins(each.value) },
      { label: "Reserve", num: true, wide: true, cell: (each) => coins(reserve(m, each.labels.account)) },
      { label: "Role", cell: (each) => state(m.of("coordinatord_relayer_role", "account", each.labels.account), "has it", "missing") },
    ], balances(m), "This process is not relaying for any account."),
    facts(
      ["Base fee of the next block", gasPrice(m.of("coordinatord_relay_gas_price_wei", "part", "base_fee"))],
      ["Tip", gasPrice(m.of("coordinatord_relay_gas_price_wei", "part", "tip"))],
      ["Above the ceiling", m.one("coordinatord_relay_fees_above_ceiling") === 1 ? "yes: exits wait, and all other ops are refused" : "no"],
      ["Transactions replaced", whole(m.sum("coordinatord_relay_replacements_total"))],
      ["Gas used", whole(m.sum("coordinatord_relay_gas_total"))],
    ),
    h("h2", {}, "Budgets"),
    table("Requests refused by a budget", [
      { label: "Budget", cell: (each) => each.labels.budget },
      { label: "Refused", num: true, cell: (each) => whole(each.value) },
    ], m.all("coordinatord_budget_refusals_total"), "No request was refused by a budget since this process started."),
    table("Gas by kind of op", [
      { label: "Op", cell: (each) => each.labels.kind },
      { label: "Gas", num: true, cell: (each) => whole(each.value) },
    ], m.all("coordinatord_relay_gas_total"), "No gas was used since this process started."),
    h("h2", {}, "Index"),
    facts(
      ["Head of the node", whole(m.one("coordinatord_chain_head_block") || null)],
      ["Blocks behind the node", whole(m.one("coordinatord_index_lag_blocks"))],
      ["Reorganisations", whole(m.sum("coordinatord_index_reorg_depth_blocks_count"))],
    ),
    h("h2", {}, "Roles"),
    table("Roles of this database", [
      { label: "Role", cell: (each) => h("span", { class: "break" }, each.labels.role) },
      { label: "This process", cell: (each) => state(each.value, "holds it", "does not", "cancelled") },
    ], m.all("coordinatord_role_held"), "This process holds no role."),
    h("h2", {}, "Nodes, database and storage"),
    table("Nodes", [
      { label: "Node", cell: (each) => each.labels.node },
      { label: "Answers", cell: (each) => state(each.value, "yes", "no") },
      { label: "Blocks behind", num: true, cell: (each) => whole(m.of("coordinatord_node_lag_blocks", "node", each.labels.node)) },
    ], m.all("coordinatord_node_up"), "Only one node is configured. The index shows its state."),
    facts(
      ["Version", m.all("coordinatord_build_info")[0]?.labels.version ?? "–"],
      ["Connections to the database", m.all("coordinatord_database_connections").map((each) => `${whole(each.value)} ${each.labels.use}`).join(", ") || "–"],
      ...m.all("coordinatord_stored_bytes").map((each) => [`Stored: ${each.labels.kind}`, bytes(each.value)]),
      ...m.all("coordinatord_clock_ahead_seconds").map((each) => [`Clock ahead of: ${each.labels.source}`, `${each.value.toFixed(1)} s`]),
    ),
  ];
}

// A rate is the difference between two samples. The rate is unknown if this process did not relay.
function charts(samples) {
  const points = (name) => samples.map((each) => ({ at: each.at, value: each[name] }));
  const relayed = samples.slice(1).map((each, n) => {
    const passed = (each.at - samples[n].at) / 60;
    return { at: each.at, value: each.queue === null || passed <= 0 ? null : ((each.relays ?? 0) - (samples[n].relays ?? 0)) / passed };
  });
  const axis = samples.length > 0 ? { from: samples[0].at, to: samples.at(-1).at } : {};
  const empty = samples.length < 3 ? "The first values appear within a minute." : "This process does not relay, so it has no values.";
  return [
    timeLine("Waiting relays", points("queue"), short, { ...axis, empty }),
    timeLine("Relays a minute", relayed, short, { ...axis, empty }),
    timeLine("Gas price", points("gas_price"), gasPrice, { ...axis, empty }),
    timeLine("Index lag, blocks", points("lag"), short, { ...axis, empty }),
  ];
}

function short(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }).replaceAll(",", "\u202f");
}

// Show short amounts in wei, others in gwei with three significant digits.
function gasPrice(wei) {
  if (wei === null) return "–";
  if (wei < 100_000) return `${whole(wei)} wei`;
  return `${(wei / 1e9).toLocaleString("en", { maximumSignificantDigits: 3 }).replaceAll(",", "\u202f")} gwei`;
}

function problems(m) {
  const found = [];
  if (m.all("coordinatord_relayer_role").some((each) => each.value === 0)) found.push("The relayer’s account lacks the relayer role. Grant it: nothing is posted or settled without it.");
  for (const each of balances(m)) {
    const needed = reserve(m, each.labels.account);
    if (needed !== null && each.value < needed) found.push(`${each.labels.account} is below its reserve: send native coin to it. Until then, it relays only exits and cancels.`);
  }
  if (m.one("coordinatord_relay_fees_above_ceiling") === 1) found.push("Fees are above RELAY_MAX_FEE_GWEI: exits wait, and all other ops are refused.");
  if (m.all("coordinatord_nodes_agreed").some((each) => each.value === 0)) found.push("Nodes contradict each other. The log of this process names the nodes.");
  for (const each of m.all("coordinatord_node_up")) if (each.value === 0) found.push(`Node ${each.labels.node} does not answer.`);
  return found;
}

function balances(m) {
  return m.all("coordinatord_relayer_funds_wei").filter((each) => each.labels.kind === "balance");
}

function reserve(m, account) {
  const found = m.all("coordinatord_relayer_funds_wei").find((each) => each.labels.kind === "reserve" && each.labels.account === account);
  return found?.value ?? null;
}

function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("strong", { class: "num" }, value), h("span", {}, note)));
}

function state(value, yes, no, kind = "failed") {
  if (value === null) return "–";
  return h("span", { class: `badge ${value === 1 ? "settled" : kind}` }, value === 1 ? yes : no);
}

function whole(value) {
  return value === null ? "–" : Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
}

function seconds(value) {
  return value === null ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

function coins(wei) {
  return wei === null ? "–" : (wei / 1e18).toLocaleString("en", { maximumSignificantDigits: 6 }).replaceAll(",", "\u202f");
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** power).toFixed(power === 0 ? 0 : 1)} ${units[power]}`;
}

refresh();
