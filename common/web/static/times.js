// Times that change without new data: "12 s ago", countdowns, and how much of a window has passed.

import { h } from "./dom.js";
import { ago, clock, span } from "./format.js";

export function when(seconds) {
  return h("time", { datetime: new Date(Number(seconds) * 1000).toISOString(), title: clock(seconds), "data-ago": seconds }, ago(seconds));
}

// Time until `until` (Unix seconds). Afterwards, show the text `endText`.
export function countdown(until, endText) {
  return h("strong", { class: "num", "data-until": String(until), "data-over": endText }, span(Number(until) - Date.now() / 1000));
}

// Progress bar of the time that has passed between two times in Unix seconds.
export function elapsedBar(from, to) {
  const done = (Date.now() / 1000 - Number(from)) / Math.max(1, Number(to) - Number(from));
  return h("progress", { max: 1, value: Math.min(1, Math.max(0, done)), "data-from": from, "data-to": to, "aria-label": "Part of the window that has passed" });
}

export function tickTimes() {
  setInterval(tick, 1000);
}

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
