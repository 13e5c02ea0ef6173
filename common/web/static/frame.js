// Frame of a page: choose the view from the URL, read its data, and refresh it.
//
// A view is {title, read, show}, and may have {heading, lead, back, controls, close}. `read` returns data, and `show`
// returns elements for it. A refresh with equal data leaves the elements alone. A `quiet` view has no placeholder before its
// first data.

import { h, replaceContent } from "./dom.js";
import { ApiError } from "./http.js";
import { tickTimes } from "./times.js";

const RETRY_DELAY_MS = 5_000;

// sections: [[section, label]], routes: [[pattern, makeView, section]], home: the path of the first view, name: the page's
// title. `prepare` reads data for every view, and its result is the second argument of `show`. `remedy` returns the next
// step after an ApiError. Returns {refresh}.
export function startFrame({ name, sections, routes, home, prepare, remedy }) {
  const content = document.querySelector("#content");
  let current = null; // the view that is shown: {view, body, reading}

  function open({ first = false } = {}) {
    const path = location.hash.slice(1) || home;
    const found = routes.map(([pattern, make, section]) => [path.match(pattern), make, section]).find(([match]) => match);
    const section = found?.[2] ?? null;
    const view = found ? found[1](found[0].slice(1), { refresh, open: (to) => (location.hash = to) }) : notFoundView();
    const body = h("div", { class: "body", "aria-busy": "true" }, !view.quiet && h("p", { class: "empty" }, "Reading …"));
    current?.view.close?.();
    current = { view, body, seen: null, timer: null, reading: false, again: false };
    document.title = `${view.title} – ${name}`;
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

  // Read one response at a time, so that an older response never replaces a newer one. A refresh during a read starts
  // another read afterwards.
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
      const about = await prepare();
      const data = await mine.view.read();
      if (mine !== current) return;
      const seen = JSON.stringify(data, (_, value) => (value instanceof Map ? [...value] : value));
      if (seen !== mine.seen) {
        mine.seen = seen;
        replaceContent(mine.body, mine.view.show(data, about));
      }
    } catch (error) {
      if (mine !== current) return;
      mine.seen = null;
      const kept = mine.body.querySelector(".notice") === null && mine.body.getAttribute("aria-busy") === null;
      const help = error instanceof ApiError ? remedy(error) : "The page failed. Reload it, and report it to the operator if it fails again.";
      const notice = h("div", { class: "notice", role: "alert" }, h("p", {}, h("strong", {}, error.message)), h("p", {}, help));
      // Keep the old rows below the error message.
      if (kept && error instanceof ApiError && (error.status === 0 || error.status >= 429)) mine.body.prepend(notice);
      else if (mine.body.querySelector(".notice")?.textContent !== notice.textContent) replaceContent(mine.body, notice);
      if (!(error instanceof ApiError)) console.error(error);
      if (!(error instanceof ApiError) || error.status === 0 || error.status >= 404) mine.timer = setTimeout(() => mine === current && refresh(), RETRY_DELAY_MS);
    }
    mine.body.removeAttribute("aria-busy");
  }

  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // a link to #content would change the view, which is in the hash of the URL
    content.focus();
  });
  document.querySelector("#views").append(...sections.map(([section, label]) =>
    h("li", {}, h("a", { href: `#/${section}`, "data-section": section }, label))));
  addEventListener("hashchange", () => open());
  tickTimes();
  open({ first: true });
  return { refresh };
}

// The header shows the state of the connection: live, polling, reconnecting or connecting.
export function showConnection(mode, words) {
  document.querySelector(".status").dataset.mode = mode;
  const label = document.querySelector("#connection");
  if (label.textContent !== words) label.textContent = words;
}

function notFoundView() {
  return { title: "Not found", read: async () => null, show: () => h("p", { class: "empty" }, "Page not found. Choose a view in the bar above.") };
}
