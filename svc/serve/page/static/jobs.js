// Two views: the jobs of the ledger, and one job with its receipt.

import { get, save } from "./api.js";
import { facts, h, hex, table } from "./dom.js";
import { digitsOf, number, span, tokens } from "./format.js";
import { hasEnded, statusText, steps } from "./progress.js";
import { when } from "./times.js";

const STATES = {
  posting: ["claimed", "Running"],
  given: ["claimed", "Answered"],
  done: ["settled", "Paid"],
  unpaid: ["cancelled", "Not paid"],
  refunded: ["failed", "Refunded"],
};
const KINDS = { chat: "chat", responses: "response", embeddings: "embeddings", images: "images", batch: "batch", tab: "tab" };

function jobBadge(row) {
  const [kind, word] = STATES[row.state] ?? ["cancelled", row.state];
  return h("span", { class: `badge ${kind}` }, word);
}

export function jobLink(row) {
  const [tab, request] = row.job_id.split("/");
  const short = row.kind === "batch" ? tab.slice(0, 14) : `${tab.slice(0, 8)}…${tab.slice(-4)}${request ? `/${request}` : ""}`;
  return h("a", { href: row.kind === "batch" ? `#/batches/${row.job_id}` : `#/jobs/${row.job_id}`, title: row.job_id }, h("code", {}, short));
}

export function jobs(_, { refresh }) {
  const pages = []; // the last job of each page before this one
  return {
    title: "Jobs",
    lead: "Every job that svc serve bought for its keys, the newest first.",
    read: () => get(`/page/jobs${pages.length > 0 ? `?before=${pages.at(-1)}` : ""}`),
    show({ jobs: rows, more }, { token }) {
      const digits = digitsOf(rows.map((row) => row.cost ?? row.amount));
      return [
        table(`Jobs, the newest first, with costs in ${token}`, [
          { label: "Job", cell: (row) => [jobLink(row), h("span", { class: "under faint" }, row.name)] },
          { label: "State", cell: jobBadge },
          { label: "Model", wide: true, cell: (row) => h("span", { class: "name" }, row.name) },
          { label: "Kind", wider: true, cell: (row) => KINDS[row.kind] ?? row.kind },
          { label: "Key", wide: true, cell: (row) => row.key },
          { label: "Cost", num: true, cell: (row) => (row.cost === null
            ? h("span", { class: "faint" }, "≤ ", tokens(row.amount, digits)) : tokens(row.cost, digits)) },
          { label: "When", num: true, wide: true, cell: (row) => when(row.at) },
        ], rows, "Nothing was bought yet. Ask something, or send a request with an OpenAI client."),
        h("nav", { class: "pages", "aria-label": "Pages" },
          h("button", { id: "newer", type: "button", disabled: pages.length === 0, onclick: () => { pages.pop(); refresh(); } }, "‹ Newer"),
          h("button", { id: "older", type: "button", disabled: !more, onclick: () => { pages.push(rows.at(-1).job_id); refresh(); } }, "Older ›")),
      ];
    },
  };
}

export function job([id], { refresh }) {
  let timer = null;
  const [jobId, request] = id.split("/"); // a request in a tab is proven by the receipt of the tab's job
  const proof = h("div", { "aria-live": "polite" });
  const showResult = (work) => async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    proof.replaceChildren(h("p", { class: "faint" }, "Reading the chain …"));
    try {
      proof.replaceChildren(...[await work()].flat().filter(Boolean));
    } catch (error) {
      proof.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
    }
    button.disabled = false;
  };
  const download = showResult(async () => {
    await save(`/page/jobs/${jobId}/receipt`, `${jobId}.receipt.json`);
    return h("p", { class: "faint" }, "Saved. Anyone can check it with svc receipt verify and a node.");
  });
  const verify = showResult(async () => {
    const found = await get(`/page/jobs/${jobId}/proof`);
    return [
      h("p", {}, h("span", { class: "badge settled" }, "Verified"), " Each fact rests on a signature or on a block of your node."),
      table("Facts of the receipt", [
        { label: "Fact", cell: (row) => row.name },
        { label: "Value", cell: (row) => (row.value.startsWith("0x") ? hex(row.value, { what: row.name }) : h("span", { class: "break" }, row.value)) },
        { label: "Rests on", wide: true, cell: (row) => row.rests_on },
      ], found.facts, ""),
    ];
  });
  return {
    title: `Job ${jobId.slice(0, 10)}…${request ? `, request ${request}` : ""}`,
    heading: h("span", {}, request ? `Request ${request} in tab ` : "Job ", hex(jobId, { what: "job id" })),
    back: ["#/jobs", "Jobs"],
    close: () => clearTimeout(timer),
    read: () => get(`/page/jobs/${id}`),
    show(row, { token, has_node }) {
      clearTimeout(timer);
      if (!hasEnded(row)) timer = setTimeout(refresh, 1_000);
      const market = row.market;
      const proven = has_node && hasEnded(row) && (!request || Boolean(market?.ended_at));
      const rates = market && `${tokens(market.rate_in)} / ${tokens(market.rate_out)}`;
      return [
        h("p", { class: "headline" }, jobBadge(row), h("span", {}, statusText(row, token))),
        steps(row),
        row.problem && h("p", { class: "notice" }, `The coordinator’s view is missing: ${row.problem}`),
        h("h2", {}, "The order"),
        facts(
          ["Model", row.name === row.model ? h("span", { class: "name" }, row.name) : h("span", { class: "name" }, `${row.name}, bought as ${row.model}`)],
          request && ["Tab", h("a", { href: `#/jobs/${jobId}` }, "the job that is settled for all its requests")],
          ["Key", row.key],
          ["Ordered", when(row.at)],
          ["Reserved", `${tokens(row.amount)} ${token}`],
          ["Cost", row.cost === null ? "not known yet" : `${tokens(row.cost)} ${token}`],
          ["Readable by", row.provider === 0 ? "the coordinator’s operator and the provider that claims it" : `provider ${row.provider}`],
          market && ["Rates", rates, h("span", { class: "faint" }, " per million units in / out")],
          market && ["Units", `${number(market.units_in)} in, up to ${number(market.units_out)} out`],
          market && ["Window", span(market.sla_secs)],
          market?.claimed_at && ["Claimed", when(market.claimed_at)],
          market?.ended_at && ["Ended", when(market.ended_at)],
          market && ["Sealed payload", hex(market.task_cid, { what: "content id" })],
          market?.result_cid && ["Sealed result", hex(market.result_cid, { what: "content id" })],
        ),
        h("h2", {}, "Receipt"),
        h("p", { class: "lead" }, has_node
          ? "A receipt proves the order, its payment and its end to anyone, with blocks of the chain. It reveals nothing of the content."
          : "A receipt is read from the chain. Start svc serve with --rpc-url to get one."),
        h("p", { class: "actions" },
          h("button", { id: "receipt", type: "button", disabled: !proven, onclick: download }, "Download the receipt"),
          h("button", { id: "verify", type: "button", disabled: !proven, onclick: verify }, "Verify it now")),
        proof,
      ];
    },
  };
}
