// The market's page: its views, and the position of the coordinator's index in the header.

import { deployment, remedy } from "./api.js";
import { startFrame, showConnection } from "./frame.js";
import { number, setDecimals } from "./format.js";
import { Live } from "./live.js";
import { batch, batches } from "./batches.js";
import { book } from "./book.js";
import { buy } from "./buy.js";
import { job } from "./job.js";
import { market } from "./market.js";
import { model, models } from "./models.js";
import { provider, providers } from "./providers.js";

const SECTIONS = [["book", "Book"], ["models", "Models"], ["providers", "Providers"], ["batches", "Batches"], ["buy", "Buy"], ["market", "Market"]];
const ROUTES = [
  [/^\/(?:book)?$/, book, "book"],
  [/^\/job\/(0x[0-9a-fA-F]{64})$/, job, "book"],
  [/^\/models$/, models, "models"],
  [/^\/models\/(\d{1,10})$/, model, "models"],
  [/^\/providers$/, providers, "providers"],
  [/^\/providers\/(\d{1,10})$/, provider, "providers"],
  [/^\/batches$/, batches, "batches"],
  [/^\/batches\/([\w-]{1,128})$/, batch, "batches"],
  [/^\/buy$/, buy, "buy"],
  [/^\/market$/, market, "market"],
];
const STATUS_TEXTS = { live: "live", polling: "live", reconnecting: "reconnecting", connecting: "connecting" };

async function prepare() {
  const about = await deployment();
  setDecimals(about.decimals);
  document.querySelector("#token").textContent = about.token_domain.name;
  return about;
}

const live = new Live();
const frame = startFrame({ name: "Market of sealed jobs", sections: SECTIONS, routes: ROUTES, home: "/book", prepare, remedy });
live.addEventListener("mode", () => showConnection(live.mode, STATUS_TEXTS[live.mode]));
live.addEventListener("position", () => {
  document.querySelector("#block").textContent = live.cursor === null ? "" : `as of block ${number(live.cursor)}`;
});
live.addEventListener("change", () => frame.refresh());
live.start();
