// State of the connection to svc serve, from a small request every two seconds while the page is visible. Listeners get
// `mode` when the state changes, and `change` when the ledger changed, the server restarted or the connection is back.

import { forgetAbout, get, hasToken } from "./api.js";

const POLL_INTERVAL_MS = 2_000;
const MAX_POLL_INTERVAL_MS = 15_000;

export class Live extends EventTarget {
  mode = "connecting"; // live, reconnecting, locked
  #lastState = null;
  #interval = POLL_INTERVAL_MS;
  #timer = null;

  start() {
    document.addEventListener("visibilitychange", () => this.poll());
    addEventListener("online", () => this.poll());
    this.poll();
  }

  async poll() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    if (!hasToken()) return void this.#become("locked");
    try {
      const { run, changes } = await get("/page/state");
      this.#interval = POLL_INTERVAL_MS;
      const reconnected = this.mode !== "live";
      if (this.#lastState !== null && this.#lastState.run !== run) forgetAbout();
      const changed = this.#lastState === null || this.#lastState.run !== run || this.#lastState.changes !== changes;
      this.#lastState = { run, changes };
      this.#become("live");
      if (changed || reconnected) this.dispatchEvent(new Event("change"));
    } catch (error) {
      this.#become(error.status === 401 ? "locked" : "reconnecting");
      this.#interval = Math.min(this.#interval * 1.5, MAX_POLL_INTERVAL_MS);
    }
    this.#timer = setTimeout(() => this.poll(), this.#interval);
  }

  // Wait until the server answers again.
  async waitUntilConnected() {
    this.#interval = POLL_INTERVAL_MS;
    await this.poll();
    while (this.mode !== "live") await new Promise((resolve) => this.addEventListener("mode", resolve, { once: true }));
  }

  #become(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.dispatchEvent(new Event("mode"));
  }
}

export const live = new Live();
