// State of the connection to svc serve, from a small request every two seconds while the page is visible. Listeners get
// `mode` when the state changes, and `change` when the ledger changed, the server restarted or the connection is back.

import { forgetAbout, get, hasToken } from "./api.js";

const LOOK_EVERY_MS = 2_000;
const MAX_WAIT_MS = 15_000;

export class Live extends EventTarget {
  mode = "connecting"; // live, reconnecting, locked
  #seen = null;
  #wait = LOOK_EVERY_MS;
  #timer = null;

  start() {
    document.addEventListener("visibilitychange", () => this.look());
    addEventListener("online", () => this.look());
    this.look();
  }

  async look() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    if (!hasToken()) return void this.#become("locked");
    try {
      const { run, changes } = await get("/page/state");
      this.#wait = LOOK_EVERY_MS;
      const returned = this.mode !== "live";
      if (this.#seen !== null && this.#seen.run !== run) forgetAbout();
      const changed = this.#seen === null || this.#seen.run !== run || this.#seen.changes !== changes;
      this.#seen = { run, changes };
      this.#become("live");
      if (changed || returned) this.dispatchEvent(new Event("change"));
    } catch (error) {
      this.#become(error.status === 401 ? "locked" : "reconnecting");
      this.#wait = Math.min(this.#wait * 1.5, MAX_WAIT_MS);
    }
    this.#timer = setTimeout(() => this.look(), this.#wait);
  }

  // Resolve when the server answers again.
  async returned() {
    this.#wait = LOOK_EVERY_MS;
    await this.look();
    while (this.mode !== "live") await new Promise((resolve) => this.addEventListener("mode", resolve, { once: true }));
  }

  #become(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.dispatchEvent(new Event("mode"));
  }
}

export const live = new Live();
