// Live updates: the coordinator's event stream if available, otherwise polling of the index's position. Listeners get
// `change` on every update. The header shows which of the two is in use.

import { address, readiness } from "./api.js";

const SETTLE = 200; // ms in which several events become one change,
const APART = 1_000; // and between two changes, however much happens
const ASKED = 3_000; // ms between two looks at the position
const SLOWEST = 30_000;
const EVENTS_AGAIN = 60_000; // ms after which events are tried again where there were none
const KINDS = ["posted", "claimed", "settled", "cancelled", "failed", "reclaimed", "expired", "taken_back", "reset", "message"];

export class Live extends EventTarget {
  mode = "connecting"; // live, polling, reconnecting
  cursor = null;
  #source = null;
  #wait = ASKED;
  #timer = null;
  #pending = null;
  #last = -Infinity;

  start() {
    this.#listen();
    this.#look();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#lookAfter(0);
    });
    addEventListener("online", () => this.#lookAfter(0));
  }

  #listen() {
    const source = new EventSource(address("/evm/events"));
    this.#source = source;
    source.addEventListener("open", () => this.#become("live"));
    for (const kind of KINDS) source.addEventListener(kind, () => this.#changed());
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) { // there are none here: the position is asked for instead
        this.#source = null;
        setTimeout(() => this.#listen(), EVENTS_AGAIN);
      } else if (this.mode === "live") this.#become("reconnecting");
    });
  }

  async #look() {
    clearTimeout(this.#timer);
    try {
      const ready = await readiness();
      this.#wait = ASKED;
      const streaming = this.#source?.readyState === EventSource.OPEN;
      const returned = this.mode === "reconnecting";
      this.#become(streaming ? "live" : "polling");
      if (ready.cursor !== this.cursor) {
        const first = this.cursor === null;
        this.cursor = ready.cursor;
        this.dispatchEvent(new Event("position"));
        if (!first && (!streaming || returned)) this.#changed();
      } else if (returned) this.#changed();
    } catch {
      this.#become("reconnecting");
      this.#wait = Math.min(this.#wait * 2, SLOWEST);
    }
    this.#lookAfter(document.hidden ? SLOWEST : this.#wait);
  }

  #lookAfter(wait) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), wait);
  }

  #become(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.dispatchEvent(new Event("mode"));
  }

  #changed() {
    if (this.#pending !== null) return;
    const wait = Math.max(SETTLE, this.#last + APART - performance.now());
    this.#pending = setTimeout(() => {
      this.#pending = null;
      this.#last = performance.now();
      this.dispatchEvent(new Event("change"));
    }, wait);
  }
}
