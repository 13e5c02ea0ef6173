// Frame of the page: choose the view from the URL, read its data, and refresh it.

import { ApiError, deployment, remedy } from "./api.js";
import { h, swap } from "./dom.js";
import { ago, number, setDecimals, span } from "./format.js";
import { Live } from "./live.js";
import { batch, batches } from "./batches.js";
import { book } from "./book.js";
import { job } from "./job.js";
import { market } from "./market.js";
import { model, models } from "./models.js";
import { provider, providers } from "./providers.js";

const VIEWS = [["book", "Book"], ["models", "Models"], ["providers", "Providers"], ["batches", "Batches"], ["market", "Market"]];
const ROUTES = [
  [/^\/(?:book)?$/, book, "book"],
  [/^\/job\/(0x[0-9a-fA-F]{64})$/, job, "book"],
  [/^\/models$/, models, "models"],
  [/^\/models\/(\d{1,10})$/, model, "models"],
  [/^\/providers$/, providers, "providers"],
  [/^\/providers\/(\d{1,10})$/, provider, "providers"],
  [/^\/batches$/, batches, "batches"],
  [/^\/batches\/([\w-]{1,128})$/, batch, "batches"],
  [/^\/market$/, market, "market"],
];
const SAID = { live: "live", polling: "live", reconnecting: "reconnecting", connecting: "connecting" };
const AGAIN = 5_000; // ms after a failure

const content = document.querySelector("#content");
const live = new Live();
let current = null; // the view that is shown: {view, body, reading}

function lost() {
  return { title: "Not found", read: async () => null, show: () => h("p", { class: "empty" }, "Page not found. Choose a view in the bar above.") };
}

function open({ first = false } = {}) {
  const path = location.hash.slice(1) || "/book";
  const found = ROUTES.map(([pattern, make, section]) => [path.match(pattern), make, section]).find(([match]) => match);
  const section = found?.[2] ?? null;
  const body = h("div", { class: "body", "aria-busy": "true" }, h("p", { class: "empty" }, "Reading …"));
  const view = found ? found[1](found[0].slice(1), { refresh: () => refresh(), open: (to) => (location.hash = to) }) : lost();
  current?.view.close?.();
  current = { view, body, seen: null, timer: null, reading: false, again: false };
  document.title = `${view.title} – Market of sealed jobs`;
  const heading = h("h1", { tabindex: "-1" }, view.heading ?? view.title);
  content.replaceChildren(...[view.back && h("p", { class: "back" }, h("a", { href: view.back[0] }, `‹ ${view.back[1]}`)), heading, view.lead && h("p", { class: "lead" }, view.lead), view.controls, body].filter(Boolean));
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.section === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) {
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  refresh();
}

// One read at a time. Changes during a read cause another read after it, so that an older answer never replaces a newer one.
async function refresh() {
  const mine = current;
  clearTimeout(mine.timer);
  mine.again = mine.reading;
  if (mine.reading) return;
  mine.reading = true;
  await readInto(mine);
  mine.reading = false;
  if (mine.again && mine === current) refresh();
}

async function readInto(mine) {
  try {
    const about = await deployment();
    setDecimals(about.decimals);
    document.querySelector("#token").textContent = about.token_domain.name;
    const data = await mine.view.read();
    if (mine !== current) return;
    const seen = JSON.stringify(data, (_, value) => (value instanceof Map ? [...value] : value));
    if (seen !== mine.seen) {
      mine.seen = seen;
      swap(mine.body, mine.view.show(data, about));
    }
  } catch (error) {
    if (mine !== current) return;
    mine.seen = null;
    const kept = mine.body.querySelector(".notice") === null && mine.body.getAttribute("aria-busy") === null;
    const notice = h("div", { class: "notice", role: "alert" }, h("p", {}, h("strong", {}, error.message)), h("p", {}, remedy(error)));
    // Keep the old rows below the error message.
    if (kept && error instanceof ApiError && (error.status === 0 || error.status >= 429)) mine.body.prepend(notice);
    else if (mine.body.querySelector(".notice")?.textContent !== notice.textContent) swap(mine.body, notice);
    if (!(error instanceof ApiError)) console.error(error);
    if (!(error instanceof ApiError) || error.status === 0 || error.status >= 404) mine.timer = setTimeout(() => mine === current && refresh(), AGAIN);
  }
  mine.body.removeAttribute("aria-busy");
}

function tellMode() {
  document.querySelector(".status").dataset.mode = live.mode;
  document.querySelector("#connection").textContent = SAID[live.mode];
}

function tellPosition() {
  document.querySelector("#block").textContent = live.cursor === null ? "" : `as of block ${number(live.cursor)}`;
}

// Times that change without new data: "12 s ago", and countdowns.
function tick() {
  const now = Date.now() / 1000;
  for (const each of document.querySelectorAll("[data-ago]")) each.textContent = ago(each.dataset.ago, now);
  for (const each of document.querySelectorAll("[data-until]")) {
    each.textContent = now < Number(each.dataset.until) ? span(Number(each.dataset.until) - now) : each.dataset.over;
  }
  for (const each of document.querySelectorAll("progress[data-from]")) {
    const [from, to] = [Number(each.dataset.from), Number(each.dataset.to)];
    each.value = Math.min(1, Math.max(0, (now - from) / Math.max(1, to - from)));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names a view
  content.focus();
});
document.querySelector("#views").append(...VIEWS.map(([section, name]) =>
  h("li", {}, h("a", { href: `#/${section}`, "data-section": section }, name))));
addEventListener("hashchange", () => open());
live.addEventListener("mode", tellMode);
live.addEventListener("position", tellPosition);
live.addEventListener("change", () => refresh());
live.start();
setInterval(tick, 1000);
open({ first: true });
