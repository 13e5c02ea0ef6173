// Providers: their listing, load, reliability and published data.

import { get, models } from "./api.js";
import { facts, h, hex, table } from "./dom.js";
import { number } from "./format.js";
import { badge, capacity, jobAndModel, modelLink, rates, reliability, windowOf } from "./parts.js";
import { when } from "./times.js";

const SHOWN_EVIDENCE = 4000;

export function providers() {
  return {
    title: "Providers",
    lead: "Providers that run jobs in this market. Slots: how many jobs the registry lets a provider hold at once. Reliability: the share of its recently claimed jobs that it settled.",
    async read() {
      const listed = await get("/evm/providers?limit=1000");
      return listed.providers;
    },
    show(rows) {
      return table("Providers", [
        { label: "Provider", cell: (row) => h("a", { href: `#/providers/${row.provider_id}` }, `provider ${row.provider_id}`) },
        { label: "Status", cell: (row) => h("span", { class: `badge ${row.listed ? "settled" : "cancelled"}` }, row.listed ? "listed" : "not listed") },
        { label: "Slots in use", cell: capacity },
        { label: "Reliability", wide: true, cell: reliability },
        { label: "Models", num: true, wide: true, cell: (row) => (row.allow_all_models ? "all" : number(row.allowed_models.length)) },
        { label: "Operator", wider: true, cell: (row) => hex(row.operator, { what: "operator" }) },
      ], rows, "No provider has registered yet.");
    },
  };
}

export function provider([id]) {
  return {
    title: `Provider ${id}`,
    back: ["#/providers", "Providers"],
    async read() {
      const [one, { asks }, { jobs }, catalogue] = await Promise.all([
        get(`/evm/providers/${id}`),
        get("/evm/asks?limit=1000"),
        get(`/evm/jobs?provider=${id}&order=newest&limit=20`),
        models(),
      ]);
      delete one.as_of_block;
      return { one, asks: asks.filter((ask) => ask.provider_id === id), jobs, catalogue };
    },
    show({ one, asks, jobs, catalogue }) {
      return [
        facts(
          ["Status", h("span", { class: `badge ${one.listed ? "settled" : "cancelled"}` }, one.listed ? "listed" : "not listed")],
          ["Slots in use", capacity(one)],
          ["Reliability", reliability(one)],
          ["Reputation", `${number(one.reputation)} of 1000`],
          ["Models", one.allow_all_models ? "all" : one.allowed_models.length === 0 ? "none"
            : one.allowed_models.flatMap((model, n) => [n ? ", " : "", modelLink(model, catalogue)])],
          ["Operator", hex(one.operator, { what: "operator" })],
          ["Box key", hex(one.box_key, { what: "box key" })],
        ),
        h("h2", {}, "Prices"),
        table("Asks of this provider", [
          { label: "Model", cell: (row) => modelLink(row.model_id, catalogue) },
          { label: "Window", num: true, cell: (row) => windowOf(row.sla) },
          { label: "In / out", num: true, cell: rates },
        ], asks, "This provider publishes no prices. It may still claim open offers."),
        h("h2", {}, "Latest jobs"),
        table("Latest jobs of this provider", [
          { label: "Job", cell: (row) => jobAndModel(row, catalogue) },
          { label: "State", cell: badge },
          { label: "Model", wide: true, cell: (row) => modelLink(row.model_id, catalogue) },
          { label: "Claimed", cell: (row) => when(row.claimed_at) },
        ], jobs, "This provider has claimed no job yet."),
        one.evidence !== null && [
          h("h2", {}, "Evidence"),
          h("p", { class: "lead" }, "Published by the provider. The market does not verify the evidence, but clients do."),
          h("pre", { class: "published", tabindex: "0", role: "region", "aria-label": "Evidence" }, shortened(one.evidence)),
        ],
      ];
    },
  };
}

function shortened(evidence) {
  const text = typeof evidence === "string" ? evidence : JSON.stringify(evidence, null, 2);
  return text.length > SHOWN_EVIDENCE ? `${text.slice(0, SHOWN_EVIDENCE)}\n… ${number(text.length - SHOWN_EVIDENCE)} more characters` : text;
}
