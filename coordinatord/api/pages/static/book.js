// The job book: jobs, newest first, and the market's load.

import { get, models } from "./api.js";
import { blockAt, blockTimes } from "./blocks.js";
import { h, hex, replaceContent, table } from "./dom.js";
import { digitsOf, number, tokens } from "./format.js";
import { badge, jobAndModel, modelLink, price, providerLink, tile, windowOf } from "./parts.js";
import { choices, find } from "./search.js";

const STATES = [["", "All"], ["Open", "Open"], ["Claimed", "In progress"], ["Settled", "Settled"], ["Cancelled", "Ended without a result"]];
const PAGE = 50;

const chosen = { state: "", model: "", who: "", offset: 0 }; // filters, kept while the page is open

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
        placeholder: "beginning of an id, or a number", "aria-describedby": "found",
        onchange: (event) => search(event.target),
      })),
    h("div", { id: "found", role: "status", class: "found" }));
  const answer = controls.querySelector("#found");

  async function search(input) {
    let result;
    try {
      result = await find(input.value);
    } catch (error) {
      result = { wrong: error.message };
    }
    input.setAttribute("aria-invalid", String(result.wrong !== undefined));
    replaceContent(answer, result.wrong !== undefined ? h("p", { class: "wrong" }, result.wrong) : result.matches && choices(result, (one) => go(one, input)));
    if (result.wrong === undefined && result.matches === undefined) go(result, input);
  }

  function go({ to, who }, input) {
    if (to !== undefined) return open(to);
    chosen.who = who;
    input.value = who;
    replaceContent(answer);
    again();
  }

  return {
    title: "Book",
    heading: "The job book",
    controls,
    async read() {
      const query = new URLSearchParams({ order: "newest", limit: String(PAGE), offset: String(chosen.offset) });
      if (chosen.state) query.set("state", chosen.state);
      if (chosen.model) query.set("model", chosen.model);
      if (chosen.who) query.set(chosen.who.startsWith("0x") ? "owner" : "provider", chosen.who);
      const [listed, counts, slots, catalogue] = await Promise.all([
        get(`/evm/jobs?${query}`),
        get("/evm/jobs/counts"),
        get("/evm/slots"),
        models(),
      ]);
      return {
        jobs: listed.jobs,
        times: await blockTimes(listed.jobs.map((row) => row.posted_block)),
        open: counts.open,
        claimed: counts.claimed,
        settled: counts.settled,
        polling: slots.providers,
        slots: slots.slots,
        free: slots.free,
        catalogue,
      };
    },
    show(data, about) {
      const options = model.querySelector("select");
      if (options.options.length !== data.catalogue.size + 1) {
        options.replaceChildren(h("option", { value: "" }, "All"), ...[...data.catalogue].map(([id, one]) =>
          h("option", { value: id, selected: chosen.model === id }, one.id)));
      }
      const digits = digitsOf(data.jobs.map((row) => price(row, about).amount).filter((amount) => amount !== null));
      return [
        h("dl", { class: "tiles" },
          tile("Open", number(data.open), "waiting for a provider"),
          tile("In progress", number(data.claimed), "claimed, not settled yet"),
          tile("Settled", number(data.settled), "delivered and paid"),
          tile("Free slots", number(data.free), data.polling === "0" ? "no provider polls now"
            : `of ${number(data.slots)} at ${number(data.polling)} polling ${data.polling === "1" ? "provider" : "providers"}`)),
        h("p", { class: "lead" }, "New here? ", h("a", { href: "#/buy" }, "How to buy in this market.")),
        table("Jobs, newest first", [
          { label: "Job", cell: (row) => jobAndModel(row, data.catalogue) },
          { label: "State", cell: badge },
          { label: "Model", wide: true, cell: (row) => modelLink(row.model_id, data.catalogue) },
          { label: `Price, ${about.token_domain.name}`, num: true, cell: (row) => {
            const { words, amount, title } = price(row, about);
            return h("span", { title }, words && h("span", { class: "faint" }, words), amount === null ? "" : tokens(amount, digits));
          } },
          { label: "Provider", wider: true, cell: (row) => (row.provider_id !== "0" ? providerLink(row.provider_id)
            : row.designated !== "0" ? h("span", {}, "for ", providerLink(row.designated)) : h("span", { class: "faint" }, "anyone")) },
          { label: "Owner", wider: true, cell: (row) => hex(row.owner, { what: "owner" }) },
          { label: "Window", num: true, wider: true, cell: (row) => windowOf(row.sla_secs) },
          { label: "Posted", wide: true, cell: (row) => h("span", { class: "stacked" }, blockAt(row.posted_block, data.times)) },
        ], data.jobs, chosen.state || chosen.model || chosen.who
          ? "No job matches these filters. Remove some." : "No job has been posted yet. New jobs appear here automatically."),
        h("nav", { class: "pages", "aria-label": "Pages" },
          h("button", { id: "newer", type: "button", disabled: chosen.offset === 0, onclick: () => { chosen.offset = Math.max(0, chosen.offset - PAGE); refresh(); } }, "‹ Newer"),
          h("button", { id: "older", type: "button", disabled: data.jobs.length < PAGE, onclick: () => { chosen.offset += PAGE; refresh(); } }, "Older ›")),
      ];
    },
  };
}
