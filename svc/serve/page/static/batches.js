// Batches of the page: price a file of requests, start and follow its batch, and fetch the results. The button names the
// highest cost, which the server then enforces.

import { about, get, post, save, upload } from "./api.js";
import { facts, h, hex, table } from "./dom.js";
import { clock, number, tokens } from "./format.js";
import { when } from "./times.js";

const PAGE_BATCHES = 20;
const FIRST_LINE_BYTES = 65_536;
const REFRESH_INTERVAL_MS = 3_000;
const PRICE_HINT = "The price is shown here before you start.";
const ENDPOINTS = ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/images/generations"];
const STATUS_BADGES = {
  validating: ["open", "Validating"],
  in_progress: ["claimed", "In progress"],
  finalizing: ["claimed", "Finalizing"],
  cancelling: ["claimed", "Cancelling"],
  completed: ["settled", "Completed"],
  failed: ["failed", "Failed"],
  expired: ["cancelled", "Expired"],
  cancelled: ["cancelled", "Cancelled"],
};
const ENDED = new Set(["completed", "failed", "expired", "cancelled"]);

export function batches(_, { refresh, open }) {
  const pages = [];
  const state = { run: 0, file: null, id: null, amount: null };
  const message = h("p", { class: "price", id: "price", role: "status" }, PRICE_HINT);
  const refused = h("div", { id: "refused" });
  const endpoint = h("select", { id: "endpoint", onchange: price }, ENDPOINTS.map((value) => h("option", { value }, value)));
  const file = h("input", { id: "file", type: "file", accept: ".jsonl,application/jsonl", required: true, onchange: async () => { await guessEndpoint(); price(); } });
  const window_ = h("select", { id: "window", onchange: price }, h("option", { value: "24h" }, "24 hours"), h("option", { value: "1h" }, "1 hour"));
  const start = h("button", { id: "start", type: "submit", class: "main", disabled: true }, "Start");

  async function guessEndpoint() {
    const [first] = (await file.files[0]?.slice(0, FIRST_LINE_BYTES).text() ?? "").split("\n");
    try {
      const { url } = JSON.parse(first);
      if (ENDPOINTS.includes(url)) endpoint.value = url;
    } catch {
      // svc serve reports the line that is wrong
    }
  }

  // Copy the chosen file to svc serve, and show its price. If another file is chosen in the meantime, show only its price.
  async function price() {
    const run = ++state.run;
    const [chosen] = file.files;
    state.amount = null;
    start.disabled = true;
    start.textContent = "Start";
    refused.replaceChildren();
    message.textContent = chosen ? "Reading the file …" : PRICE_HINT;
    if (!chosen) return;
    try {
      if (state.file !== chosen) {
        const { id } = await upload(chosen);
        if (run !== state.run) return;
        Object.assign(state, { file: chosen, id });
      }
      message.textContent = "Requesting the price …";
      const [found, { token }] = await Promise.all([post("/page/batch-price", request()), about()]);
      if (run === state.run) show(found, token);
    } catch (error) {
      if (run === state.run) message.replaceChildren(h("strong", {}, error.message));
    }
  }

  function request() {
    return { input_file_id: state.id, endpoint: endpoint.value, completion_window: window_.value };
  }

  function show(found, token) {
    if (found.amount === null) {
      message.replaceChildren(h("strong", {}, `${number(found.refused)} of ${lines(found.lines)} would be refused, so the batch would fail.`), " Correct the file and choose it again.");
      refused.replaceChildren(errors("Lines that would be refused", found.errors));
      return;
    }
    const maxCost = `${tokens(found.amount)} ${token}`;
    state.amount = found.amount;
    start.textContent = `Start for at most ${maxCost}`;
    start.disabled = false;
    message.replaceChildren(h("strong", {}, `${lines(found.lines)} cost ${maxCost} or less.`),
      ` ${found.models.map((each) => `${each.name}: ${lines(each.lines)}`).join(". ")}.`);
  }

  async function submit(event) {
    event.preventDefault();
    if (state.amount === null) return;
    start.disabled = true;
    try {
      const made = await post("/v1/batches", request(), { headers: { "x-svc-max-amount": state.amount } });
      open(`#/batches/${made.id}`);
    } catch (error) {
      message.replaceChildren(h("strong", {}, error.message));
      start.disabled = false;
    }
  }

  return {
    title: "Batches",
    lead: "A batch is a JSONL file with a request in each line, in OpenAI’s form. Every line is sealed on this machine. A batch reserves the highest cost of all lines, up to the limit per batch in serve.toml, and is charged what its lines cost.",
    controls: h("div", {},
      h("form", { class: "filters", "aria-label": "New batch", onsubmit: submit },
        h("label", { class: "grow" }, "File of requests", file),
        h("label", {}, "Route", endpoint),
        h("label", {}, "Window", window_),
        start, message),
      refused),
    read: () => get(`/v1/batches?limit=${PAGE_BATCHES}${pages.length > 0 ? `&after=${pages.at(-1)}` : ""}`),
    show({ data, has_more, last_id }, { token }) {
      return [
        table(`Batches, the newest first, with costs in ${token}`, [
          { label: "Batch", cell: (row) => h("a", { href: `#/batches/${row.id}`, title: row.id }, h("code", {}, row.id.slice(0, 12))) },
          { label: "State", cell: badge },
          { label: "Lines", num: true, cell: (row) => `${number(row.request_counts.completed)} / ${number(row.request_counts.total)}` },
          { label: "Cost", num: true, cell: cost },
          { label: "Route", wide: true, cell: (row) => h("code", {}, row.endpoint) },
          { label: "When", num: true, wide: true, cell: (row) => when(row.created_at) },
        ], data, "No batch yet. Choose a file of requests above."),
        h("nav", { class: "pages", "aria-label": "Pages" },
          h("button", { id: "newer", type: "button", disabled: pages.length === 0, onclick: () => { pages.pop(); refresh(); } }, "‹ Newer"),
          h("button", { id: "older", type: "button", disabled: !has_more, onclick: () => { pages.push(last_id); refresh(); } }, "Older ›")),
      ];
    },
  };
}

export function batch([id], { refresh }) {
  let timer = null;
  const message = h("p", { class: "said", role: "status" });
  const reportErrors = (work) => async () => {
    try {
      await work();
      message.textContent = "";
    } catch (error) {
      message.textContent = error.message;
    }
  };
  return {
    title: `Batch ${id.replace("batch_", "").slice(0, 8)}…`,
    back: ["#/batches", "Batches"],
    close: () => clearTimeout(timer),
    read: () => get(`/v1/batches/${id}`),
    show(row, { token }) {
      clearTimeout(timer);
      if (!ENDED.has(row.status)) timer = setTimeout(refresh, REFRESH_INTERVAL_MS);
      const { total, completed, failed } = row.request_counts;
      const part = (name, label) => row[`${name}_file_id`] && h("button", { id: name, type: "button",
        onclick: reportErrors(() => save(`/v1/files/${row[`${name}_file_id`]}/content`, `${id}_${name}.jsonl`)) }, label);
      return [
        h("p", { class: "headline" }, badge(row), h("span", {}, total === 0 ? "Its lines are being read." : `${number(completed + failed)} of ${number(total)} lines have ended.`)),
        total > 0 && h("progress", { max: total, value: completed + failed, "aria-label": "Lines that have ended" }),
        facts(
          ["Id", hex(row.id, { what: "batch id" })],
          ["Route", h("code", {}, row.endpoint)],
          ["Completed", number(completed)],
          ["Failed", number(failed)],
          ["Reserved", row.svc.amount === "0" ? "nothing yet" : `${tokens(row.svc.amount)} ${token}`],
          ["Cost", row.svc.cost === null ? "not known yet" : `${tokens(row.svc.cost)} ${token}`],
          ["Started", when(row.created_at)],
          ["Ends by", clock(row.expires_at)],
        ),
        row.errors && [h("h2", {}, "Errors"), errors("Errors of the batch", row.errors.data)],
        h("p", { class: "actions" },
          part("output", "Download the results"), part("error", "Download the failures"),
          !ENDED.has(row.status) && row.status !== "cancelling" && h("button", { id: "cancel", type: "button",
            onclick: reportErrors(async () => { await post(`/v1/batches/${id}/cancel`, {}); refresh(); }) }, "Cancel the batch")),
        message,
      ];
    },
  };
}

function errors(caption, rows) {
  return table(caption, [
    { label: "Line", cell: (error) => (error.line === null || error.line === undefined ? "–" : number(error.line)) },
    { label: "What is wrong", cell: (error) => h("span", { class: "break" }, error.message) },
  ], rows, "");
}

function lines(count) {
  return `${number(count)} ${count === 1 ? "line" : "lines"}`;
}

function badge(row) {
  const [kind, word] = STATUS_BADGES[row.status] ?? ["cancelled", row.status];
  return h("span", { class: `badge ${kind}` }, word);
}

function cost(row) {
  if (row.svc.cost !== null) return tokens(row.svc.cost);
  return row.svc.amount === "0" ? h("span", { class: "faint" }, "–") : h("span", { class: "faint" }, "≤ ", tokens(row.svc.amount));
}
