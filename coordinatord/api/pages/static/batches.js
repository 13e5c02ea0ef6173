// Batches of one wallet. Only their owner may read them, so the page requests a session token, which stays in this tab.

import { forgetToken, get, keepToken, token } from "./api.js";
import { lines } from "./code.js";
import { facts, gauge, h, hex, table } from "./dom.js";
import { clock, number, share } from "./format.js";
import { address } from "./http.js";
import { when } from "./times.js";

const WORDS = {
  validating: ["open", "Validating"],
  in_progress: ["claimed", "In progress"],
  finalizing: ["claimed", "Finalizing"],
  completed: ["settled", "Completed"],
  failed: ["failed", "Failed"],
  expired: ["cancelled", "Expired"],
  cancelling: ["cancelled", "Cancelling"],
  cancelled: ["cancelled", "Cancelled"],
};
const MOMENTS = [["created_at", "Created"], ["in_progress_at", "First lines posted"], ["finalizing_at", "All lines ended"], ["cancelling_at", "Cancel requested"], ["completed_at", "Completed"], ["failed_at", "Failed"], ["expired_at", "Expired"], ["cancelled_at", "Cancelled"]];

export function batches(_, { open, refresh }) {
  return {
    title: "Batches",
    lead: "Many jobs from one file of lines. Only their owner can see them.",
    controls: session(refresh, open),
    async read() {
      return token() === null ? null : (await get("/v1/batches?limit=100", { session: true })).data;
    },
    show(rows) {
      if (rows === null) return tokenInstructions();
      return table("Batches, newest first", [
        { label: "Batch", cell: (row) => h("a", { href: `#/batches/${row.id}`, title: row.id }, h("code", {}, `${row.id.slice(0, 14)}…`)) },
        { label: "Status", cell: badge },
        { label: "Lines", cell: counts },
        { label: "Window", wide: true, cell: (row) => row.completion_window },
        { label: "Created", wide: true, cell: (row) => when(row.created_at) },
      ], rows, "This wallet has no batches. Create one with `svc batch create`.");
    },
  };
}

export function batch([id], { open, refresh }) {
  return {
    title: "Batch",
    heading: h("span", {}, "Batch ", hex(id, { what: "batch id" })),
    back: ["#/batches", "Batches"],
    controls: token() === null ? session(refresh, open) : null,
    async read() {
      if (token() === null) return null;
      const one = await get(`/v1/batches/${id}`, { session: true });
      delete one.as_of_block;
      return one;
    },
    show(one) {
      if (one === null) return tokenInstructions();
      const errors = one.errors?.data ?? [];
      return [
        h("p", { class: "headline" }, badge(one), " ", counts(one)),
        errors.length > 0 && h("div", { class: "notice" }, errors.map((each) => h("p", {}, `${each.line ? `Line ${each.line}: ` : ""}${each.message}`))),
        h("h2", {}, "Timeline"),
        h("ol", { class: "timeline" }, MOMENTS.filter(([member]) => one[member]).map(([member, name]) =>
          h("li", { class: "done" }, h("strong", {}, name), h("span", { class: "said" }, clock(one[member]), " · ", when(one[member]))))),
        facts(
          ["Window", one.completion_window],
          ["Ends by", clock(one.expires_at)],
          ["Endpoint", h("code", {}, one.endpoint)],
          ["Input file", hex(one.input_file_id, { what: "file id" })],
          one.output_file_id && ["Output file", hex(one.output_file_id, { what: "file id" })],
          one.error_file_id && ["Error file", hex(one.error_file_id, { what: "file id" })],
        ),
      ];
    },
  };
}

// Instructions for getting a session token.
function tokenInstructions() {
  const market = address("/").href.replace(/\/$/, "");
  return [
    h("p", { class: "empty" }, "Paste a session token to see the batches of its wallet. The token stays in this tab and is lost when the tab closes."),
    h("h2", {}, "How to get a token"),
    h("p", {}, "Your wallet signs in to this coordinator and gets a token that is valid for a day. The token can read your batches and files, but it cannot pay. With ", h("code", {}, "svc"), " set up as on the page ", h("a", { href: "#/buy" }, "Buy"), ", this command prints a token:"),
    lines("Session token", `python -c 'from svc import SyncClient; print(SyncClient("${market}").session().token)'\n`),
    h("p", {}, "Or follow a batch in the terminal: ", h("code", {}, "svc batch list"), " needs no token."),
  ];
}

function badge(row) {
  const [kind, word] = WORDS[row.status] ?? ["cancelled", row.status];
  return h("span", { class: `badge ${kind}` }, word);
}

function counts(row) {
  const { completed, failed, total } = row.request_counts;
  return h("span", { class: "capacity" },
    gauge(completed + failed, total, `${share(completed + failed, total)} of the lines have ended`),
    h("span", { class: "num" }, `${number(completed)} done, ${number(failed)} failed, of ${number(total)}`));
}

function session(refresh, open) {
  const input = h("input", { id: "session", type: "password", autocomplete: "off", spellcheck: "false", placeholder: "svc_sess_…" });
  const id = h("input", { id: "batch-id", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "batch_…" });
  return h("form", {
    class: "filters", "aria-label": "Session",
    onsubmit: (event) => {
      event.preventDefault();
      if (input.value.trim()) keepToken(input.value.trim());
      input.value = "";
      if (/^[\w-]{1,128}$/.test(id.value.trim())) open(`#/batches/${id.value.trim()}`);
      else refresh();
    },
  },
    h("label", { class: "grow" }, "Session token", input),
    h("label", { class: "grow" }, "Batch id (optional)", id),
    h("button", { type: "submit" }, "Show"),
    h("button", { type: "button", class: "quiet", onclick: () => { forgetToken(); refresh(); } }, "Forget the token"));
}
