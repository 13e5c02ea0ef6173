// The playground of svc serve: its views, its session, and the state of the connection in the header.

import { about, openSession, remedy } from "./api.js";
import { ask } from "./ask.js";
import { batch, batches } from "./batches.js";
import { setDecimals } from "./format.js";
import { startFrame, showConnection } from "./frame.js";
import { job, jobs } from "./jobs.js";
import { live } from "./live.js";
import { spending } from "./spending.js";
import { wallet } from "./wallet.js";

const SECTIONS = [["ask", "Ask"], ["batches", "Batches"], ["jobs", "Jobs"], ["spending", "Spending"], ["wallet", "Wallet"]];
const LINK = /^\/open\/([\w.-]{1,200})$/;
const ROUTES = [
  [/^\/(?:ask)?$/, ask, "ask"],
  [/^\/batches$/, batches, "batches"],
  [/^\/batches\/([\w-]{1,128})$/, batch, "batches"],
  [/^\/jobs$/, jobs, "jobs"],
  [/^\/jobs\/(0x[0-9a-f]{64}(?:\/\d{1,10})?)$/, job, "jobs"],
  [/^\/spending$/, spending, "spending"],
  [/^\/wallet$/, wallet, "wallet"],
  [LINK, () => ({ title: "Opening the page", quiet: true, read: async () => null, show: () => [] }), null],
];
const MODE_TEXTS = { live: "connected", reconnecting: "reconnecting", connecting: "connecting", locked: "locked" };

async function prepare() {
  const link = location.hash.slice(1).match(LINK)?.[1];
  if (link) {
    await openSession(link);
    location.replace("#/ask"); // the link is used up: keep it out of the history
    live.poll();
  }
  const facts = await about();
  setDecimals(facts.decimals);
  document.querySelector("#token").textContent = facts.token;
  return facts;
}

live.addEventListener("mode", () => showConnection(live.mode, MODE_TEXTS[live.mode]));
const frame = startFrame({ name: "Playground", sections: SECTIONS, routes: ROUTES, home: "/ask", prepare, remedy });
live.addEventListener("change", () => frame.refresh());
live.start();
