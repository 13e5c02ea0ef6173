// Models: current asks, and prices paid over time.

import { get, getIfAny } from "./api.js";
import { pointsOf, priceChart, sparkline } from "./chart.js";
import { facts, h, table } from "./dom.js";
import { span, tokens } from "./format.js";
import { badge, jobLink, providerLink, rates, windowOf } from "./parts.js";

const MAX_SPARKLINES = 24; // the first models of the list get a line of prices

export function models() {
  return {
    title: "Models",
    lead: "Models that can be ordered, the lowest current asks, and the prices paid lately. Prices are per million units of input and output.",
    async read() {
      const [{ data }, { floors }] = await Promise.all([get("/v1/models?limit=1000"), get("/evm/asks/floors?limit=1000")]);
      const paid = await Promise.all(data.slice(0, MAX_SPARKLINES).map((one) => getIfAny(`/evm/models/${one.svc.model_id}/prices`)));
      for (const each of paid) if (each) delete each.as_of_block;
      return { data, floors, paid };
    },
    show({ data, floors, paid }) {
      const cheapest = (id) => floors.filter((floor) => floor.model_id === id);
      return table("Models", [
        { label: "Model", cell: (row) => h("a", { href: `#/models/${row.svc.model_id}`, class: "name" }, row.id) },
        { label: "From", num: true, cell: (row) => {
          const all = cheapest(row.svc.model_id);
          return all.length === 0 ? h("span", { class: "faint" }, "no asks")
            : rates({ rate_in: least(all, "rate_in"), rate_out: least(all, "rate_out") });
        } },
        { label: "Paid", wide: true, cell: (row) => {
          const history = paid[data.indexOf(row)];
          if (!history?.prices.length) return h("span", { class: "faint" }, "nothing yet");
          const medians = pointsOf(history, "rate_out").map((point) => point.median);
          return sparkline(medians, `median price of output, now ${tokens(medians.at(-1))}`);
        } },
        { label: "Windows", wide: true, cell: (row) => cheapest(row.svc.model_id).map((floor) => windowOf(floor.sla)).join(", ") || "–" },
        { label: "Endpoint", wider: true, cell: (row) => h("code", {}, row.svc.endpoint ?? "–") },
        { label: "Orders", cell: (row) => h("span", { class: `badge ${row.svc.enabled ? "settled" : "cancelled"}` }, row.svc.enabled ? "accepted" : "not accepted") },
      ], data, "The catalogue is empty: the market’s admin has not added a model yet.");
    },
  };
}

export function model([id]) {
  return {
    title: `Model ${id}`,
    back: ["#/models", "Models"],
    async read() {
      const [listed, history, { asks }, { jobs }] = await Promise.all([
        get("/v1/models?limit=1000"),
        get(`/evm/models/${id}/prices`),
        get(`/evm/asks?model=${id}&limit=200`),
        get(`/evm/jobs?model=${id}&order=newest&limit=10`),
      ]);
      delete history.as_of_block;
      return { one: listed.data.find((each) => each.svc.model_id === id) ?? null, history, asks, jobs };
    },
    show({ one, history, asks, jobs }) {
      if (one !== null) document.querySelector("h1").textContent = one.id;
      const paid = history.prices.length > 0;
      return [
        one && facts(
          ["Id", id],
          ["Owned by", one.owned_by || "–"],
          ["Endpoint", h("code", {}, one.svc.endpoint ?? "–")],
          ["Orders", one.svc.enabled ? "accepted" : "no longer accepted"],
        ),
        h("h2", {}, "Prices paid over time"),
        paid ? [
          h("p", { class: "lead" }, `Rates per million units, in steps of ${span(history.bucket_secs)}. The line is the median, and the band is the range from lowest to highest.`),
          h("div", { class: "charts" },
            priceChart("Input", pointsOf(history, "rate_in")),
            priceChart("Output", pointsOf(history, "rate_out"))),
        ] : h("p", { class: "empty" }, "No job of this model has been settled yet, so there are no prices."),
        h("h2", {}, "Current asks"),
        table("Asks for this model", [
          { label: "Provider", cell: (row) => providerLink(row.provider_id) },
          { label: "Window", num: true, cell: (row) => windowOf(row.sla) },
          { label: "In / out", num: true, cell: rates },
        ], asks, "No listed provider has an ask for this model. A provider may still claim an open offer."),
        h("h2", {}, "Latest jobs"),
        table("Latest jobs of this model", [
          { label: "Job", cell: (row) => jobLink(row.job_id) },
          { label: "State", cell: badge },
          { label: "In / out", num: true, wide: true, cell: rates },
          { label: "Provider", cell: (row) => providerLink(row.provider_id) },
        ], jobs, "No orders yet."),
      ];
    },
  };
}

function least(rows, member) {
  return rows.map((row) => BigInt(row[member])).reduce((low, value) => (value < low ? value : low));
}
