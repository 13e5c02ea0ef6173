// Spending by day, model and key, and what is left of the budgets.

import { get } from "./api.js";
import { shareBars } from "./chart.js";
import { gauge, h } from "./dom.js";
import { number, span, tokens } from "./format.js";
import { dayBars } from "./series.js";

const DAY_S = 86_400;
const SUM_TIMEOUT_MS = 120_000; // sums of a huge ledger take seconds
const CHOICES = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "a year"]];

let days = 30; // kept while the page is open

export function spending(_, { refresh }) {
  return {
    title: "Spending",
    lead: "From the ledger of svc serve. A running job counts with its reserved amount until it has ended. Days are in UTC.",
    controls: h("form", { class: "filters", "aria-label": "Period", onsubmit: (event) => event.preventDefault() },
      h("label", {}, "Period", h("select", { id: "days", onchange: (event) => { days = Number(event.target.value); refresh(); } },
        CHOICES.map(([value, label]) => h("option", { value, selected: value === days }, label))))),
    read: () => get(`/page/spend?days=${days}`, SUM_TIMEOUT_MS),
    show(sums, { token }) {
      const total = (member) => sums.days.reduce((sum, row) => sum + BigInt(row[member]), 0n);
      const counted = (member) => sums.days.reduce((sum, row) => sum + row[member], 0);
      return [
        h("dl", { class: "tiles three" },
          tile("Spent", tokens(total("paid")), token),
          tile("Reserved", tokens(total("reserved")), `${token}, by ${number(counted("running"))} running ${counted("running") === 1 ? "job" : "jobs"}`),
          tile("Jobs", number(counted("jobs")), `${number(counted("free"))} without a cost`)),
        h("h2", {}, "Budgets"),
        sums.budgets.length === 0 ? h("p", { class: "empty" }, "No budget is set.") : h("ul", { class: "budgets" }, sums.budgets.map((each) => budget(each, token))),
        h("h2", {}, "By day"),
        h("div", { class: "charts" },
          dayBars(`Spent each day, in ${token}`, lastDays(sums), [byDay(sums, "Spent", "paid")], tokens, { now: tokens(total("paid")), empty: "Nothing was spent." }),
          dayBars("Jobs each day", lastDays(sums), [byDay(sums, "Jobs", "jobs")], number, { now: number(counted("jobs")), empty: "No job was posted." })),
        h("h2", {}, "By model"),
        shareBars("Spent by model", sums.models.map((row) => ({ name: row.name, value: BigInt(row.paid), note: jobsOf(row) })), token),
        h("h2", {}, "By key"),
        shareBars("Spent by key", sums.keys.map((row) => ({ name: row.name, value: BigInt(row.paid), note: jobsOf(row) })), token),
      ];
    },
  };
}

function jobsOf(row) {
  return `${number(row.jobs)} ${row.jobs === 1 ? "job" : "jobs"}`;
}

function tile(label, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("strong", { class: "num" }, value), h("span", {}, note)));
}

function lastDays({ until }) {
  return Array.from({ length: days }, (_, n) => new Date((until - (days - 1 - n) * DAY_S) * 1000).toISOString().slice(0, 10));
}

function byDay(sums, name, member) {
  const known = new Map(sums.days.map((row) => [row.name, row]));
  return { name, values: lastDays(sums).map((day) => BigInt(known.get(day)?.[member] ?? 0)) };
}

// A meter counts in parts of 1,000, because amounts may exceed what a number holds exactly.
function budget({ key, seconds, max_amount, used }, token) {
  const [limit, spent] = [BigInt(max_amount), BigInt(used)];
  const left = limit > spent ? limit - spent : 0n;
  const name = `${key === null ? "All keys" : `Key ${key}`}, ${seconds === DAY_S ? "any day" : seconds === 3600 ? "any hour" : `any ${span(seconds)}`}`;
  return h("li", {},
    h("span", { class: "budget-name" }, name),
    gauge(Number((spent * 1000n) / limit), 1000, `${name}: ${tokens(spent)} of ${tokens(limit)} ${token} used`),
    h("span", { class: "num" }, `${tokens(spent)} of ${tokens(limit)} ${token}`),
    h("span", { class: "faint num" }, `${tokens(left)} left`));
}
