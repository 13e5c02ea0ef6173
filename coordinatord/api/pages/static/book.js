// The job book: jobs, newest first, and the market's load.

import { get, models } from "./api.js";
import { h, hex, table } from "./dom.js";
import { digitsOf, most, number, tokens } from "./format.js";
import { badge, jobAndModel, modelLink, providerLink, tile, windowOf } from "./parts.js";

const STATES = [["", "All"], ["Open", "Open"], ["Claimed", "In progress"], ["Settled", "Settled"], ["Cancelled", "Ended without a result"]];
const PAGE = 50;

const chosen = { state: "", model: "", who: "", offset: 0 }; // kept while the page is open

export function book(_, { refresh, open }) {
  const again = () => {
    chosen.offset = 0;
    refresh();
  };
  const select = (name, label, options) => h("label", {}, label,
    h("select", { id: `filter-${name}`, onchange: (event) => { chosen[name] = event.target.value; again(); } },
      options.map(([value, text]) => h("option", { value, selected: chosen[name] === value }, text))));
  const model = select("model", "Model", [["", "All"]]);
  const controls = h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    select("state", "State", STATES),
    model,
    h("label", { class: "grow" }, "Job, owner or provider",
      h("input", {
        id: "filter-who", type: "search", autocomplete: "off", spellcheck: "false", value: chosen.who,
        placeholder: "0x… or a provider’s number",
        onchange: (event) => {
          const text = event.target.value.trim();
          if (/^0x[0-9a-f]{64}$/i.test(text)) return open(`#/job/${text.toLowerCase()}`);
          const fine = text === "" || /^0x[0-9a-f]{40}$/i.test(text) || /^[0-9]{1,9}$/.test(text);
          event.target.setAttribute("aria-invalid", String(!fine));
          if (fine) {
            chosen.who = text;
            again();
          }
        },
      })));
  return {
    title: "Book",
    heading: "The job book",
    controls,
    async read() {
      const query = new URLSearchParams({ order: "newest", limit: String(PAGE), offset: String(chosen.offset) });
      if (chosen.state) query.set("state", chosen.state);
      if (chosen.model) query.set("model", chosen.model);
      if (chosen.who) query.set(chosen.who.startsWith("0x") ? "owner" : "provider", chosen.who);
      const [listed, counts, market, catalogue] = await Promise.all([
        get(`/evm/jobs?${query}`),
        get("/evm/jobs/counts"),
        get("/evm/providers?limit=1000"),
        models(),
      ]);
      const at_work = market.providers.filter((one) => one.listed);
      return {
        jobs: listed.jobs,
        open: counts.open,
        claimed: counts.claimed,
        settled: counts.settled,
        providers: at_work.length,
        free: at_work.reduce((sum, one) => sum + Math.max(0, Number(one.capacity) - Number(one.active_jobs)), 0),
        catalogue,
      };
    },
    show(data) {
      const options = model.querySelector("select");
      if (options.options.length !== data.catalogue.size + 1) {
        options.replaceChildren(h("option", { value: "" }, "All"), ...[...data.catalogue].map(([id, one]) =>
          h("option", { value: id, selected: chosen.model === id }, one.id)));
      }
      const digits = digitsOf(data.jobs.map(most));
      return [
        h("dl", { class: "tiles" },
          tile("Open", number(data.open), "waiting for a provider"),
          tile("In progress", number(data.claimed), "claimed, not settled yet"),
          tile("Settled", number(data.settled), "delivered and paid"),
          tile("Free slots", number(data.free), `of ${number(data.providers)} listed ${data.providers === 1 ? "provider" : "providers"}`)),
        table("Jobs, the newest first", [
          { label: "Job", cell: (row) => jobAndModel(row, data.catalogue) },
          { label: "State", cell: badge },
          { label: "Model", wide: true, cell: (row) => modelLink(row.model_id, data.catalogue) },
          { label: "At most", num: true, cell: (row) => tokens(most(row), digits) },
          { label: "Provider", wide: true, cell: (row) => (row.provider_id !== "0" ? providerLink(row.provider_id)
            : row.designated !== "0" ? h("span", {}, "for ", providerLink(row.designated)) : h("span", { class: "faint" }, "anyone")) },
          { label: "Owner", wide: true, cell: (row) => hex(row.owner, { what: "owner" }) },
          { label: "Window", num: true, wide: true, cell: (row) => windowOf(row.sla_secs) },
          { label: "Block", num: true, wide: true, cell: (row) => number(row.posted_block) },
        ], data.jobs, chosen.state || chosen.model || chosen.who
          ? "No job matches these filters. Remove some." : "No job has been posted yet. New jobs appear here automatically."),
        h("nav", { class: "pages", "aria-label": "Pages" },
          h("button", { id: "newer", type: "button", disabled: chosen.offset === 0, onclick: () => { chosen.offset = Math.max(0, chosen.offset - PAGE); refresh(); } }, "‹ Newer"),
          h("button", { id: "older", type: "button", disabled: data.jobs.length < PAGE, onclick: () => { chosen.offset += PAGE; refresh(); } }, "Older ›")),
      ];
    },
  };
}
