// Live updates: the coordinator's event stream if available, otherwise polling of the index's position. Listeners get
// `change` on every update. The header shows the current mode.

import { readiness } from "./api.js";
import { address } from "./http.js";

const GATHER_MS = 200; // events within this time cause one `change`
const MIN_CHANGE_INTERVAL_MS = 1_000;
const POLL_MS = 3_000; // between two reads of the position
const MAX_POLL_MS = 30_000;
const EVENTS_RETRY_MS = 60_000; // until a closed event stream is opened again
const KINDS = ["posted", "claimed", "settled", "cancelled", "failed", "reclaimed", "expired", "taken_back", "reset", "message"];

export class Live extends EventTarget {
  mode = "connecting"; // live, polling, reconnecting
  cursor = null;
  #source = null;
  #wait = POLL_MS;
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
      if (source.readyState === EventSource.CLOSED) { // no event stream: poll the position instead
        this.#source = null;
        setTimeout(() => this.#listen(), EVENTS_RETRY_MS);
      } else if (this.mode === "live") this.#become("reconnecting");
    });
  }

  async #look() {
    clearTimeout(this.#timer);
    try {
      const ready = await readiness();
      this.#wait = POLL_MS;
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
      this.#wait = Math.min(this.#wait * 2, MAX_POLL_MS);
    }
    this.#lookAfter(document.hidden ? MAX_POLL_MS : this.#wait);
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
    const wait = Math.max(GATHER_MS, this.#last + MIN_CHANGE_INTERVAL_MS - performance.now());
    this.#pending = setTimeout(() => {
      this.#pending = null;
      this.#last = performance.now();
      this.dispatchEvent(new Event("change"));
    }, wait);
  }
}
