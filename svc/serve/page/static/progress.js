// Progress of a job: posted, claimed, settled, final.

import { about, get } from "./api.js";
import { h } from "./dom.js";
import { tokens } from "./format.js";

const POLL_INTERVAL_MS = 1_000;
const ENDED = new Set(["done", "unpaid", "refunded"]);
const STATUS_TEXTS = {
  preparing: "Sealing and signing the order.",
  posting: "Posting the job.",
  queued: "Waiting for the provider to claim the job.",
  in_progress: "The provider is running the job.",
  completed: "Reading the result.",
};
const END_TEXTS = {
  unpaid: "The job ended without a result. Nothing was paid.",
  refunded: "The chain did not settle the answer. Nothing was paid.",
};

export function hasEnded(job) {
  return ENDED.has(job.state);
}

// Return the id of a job in the ledger, which for a request in a tab is JOB/NUMBER.
export function ledgerId(svc) {
  return svc?.tab_request ? `${svc.job_id}/${svc.tab_request}` : svc?.job_id;
}

function isUnsettledTabRequest(job) {
  return Boolean(job.job_id?.includes("/")) && !job.market?.ended_at;
}

// Draw the steps of a job. `job` is a row of the ledger, with the coordinator's view if it is known.
export function steps(job) {
  const status = job.market?.status ?? job.status ?? "queued";
  const answered = job.state === "given" || job.state === "done";
  const settled = answered && !isUnsettledTabRequest(job);
  const claimed = answered || Boolean(job.market?.claimed_at) || ["in_progress", "completed"].includes(status);
  const reached = [!["preparing", "posting"].includes(status), claimed, settled, settled && job.state === "done"];
  const failed = job.state === "unpaid" || job.state === "refunded";
  const labels = ["Posted", "Claimed", "Settled", "Final"];
  const next = failed ? -1 : reached.indexOf(false);
  const kind = (n) => (reached[n] ? "done" : n === next ? "next" : "later");
  const stateNames = { done: "done", next: "next", later: "not yet" };
  const items = labels.filter((_, n) => !failed || reached[n]).map((label, n) =>
    h("li", { class: kind(n) }, label, h("span", { class: "unseen" }, `: ${stateNames[kind(n)]}`)));
  if (failed) items.push(h("li", { class: "failed" }, job.state === "refunded" ? "Refunded" : "Ended"));
  return h("ol", { class: "steps", "aria-label": "Progress of the job" }, items);
}

export function statusText(job, token) {
  if (END_TEXTS[job.state]) return END_TEXTS[job.state];
  if (job.state === "done" && isUnsettledTabRequest(job)) return `Answered in a tab. It costs ${tokens(job.cost)} ${token}, paid when the tab is settled.`;
  if (job.state === "done") return `Final on the chain. It cost ${tokens(job.cost)} ${token}.`;
  if (job.state === "given") return "Settled by the coordinator. The payment is final once the chain has it.";
  return STATUS_TEXTS[job.market?.status ?? job.status] ?? "Waiting for the market.";
}

// Follow a request of this page by its idempotency key until its last job has ended, and draw each state into `place`.
// Call `setJob` as soon as the job is known, and `end` when the request has ended.
export function follow(place, idempotency) {
  let job_id = null;
  let lastJobJson = null;
  let ended = false;

  async function poll() {
    if (place.closest(".talk") === null) return; // the conversation was cleared
    if (place.isConnected && !document.hidden && await draw()) return;
    setTimeout(poll, POLL_INTERVAL_MS);
  }

  // Draw the current state. Return true once the state cannot change any more.
  async function draw() {
    try {
      const isLastRead = ended; // read first: only a state that is read after the end is final
      const { token } = await about();
      const open = await get(`/page/purchases/${idempotency}`);
      job_id = open.job_id ?? job_id;
      if (job_id === null && isLastRead) {
        place.replaceChildren();
        return true;
      }
      const job = job_id === null ? { state: "posting", status: open.status ?? "preparing" } : await get(`/page/jobs/${job_id}`);
      const key = JSON.stringify(job);
      if (key !== lastJobJson) {
        lastJobJson = key;
        place.replaceChildren(steps(job), h("p", { class: "said" }, statusText(job, token), " ",
          job_id && h("a", { href: `#/jobs/${job_id}` }, "Details")));
      }
      return isLastRead && hasEnded(job);
    } catch (error) {
      return error.status === 401;
    }
  }

  poll();
  return {
    setJob: (id) => { job_id = id ?? job_id; },
    end: () => { ended = true; },
  };
}
