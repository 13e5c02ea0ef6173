import { ponder } from "ponder:registry";
import { job } from "ponder:schema";

const [OPEN, CLAIMED, SETTLED, CANCELLED] = [0, 1, 2, 3];
const [NOT_ENDED, BY_SETTLE, BY_OWNER, BY_FAIL, BY_RECLAIM] = [0, 1, 2, 3, 4];

ponder.on("JobRegistry:JobPosted", async ({ event, context }) => {
  const { rateIn, rateOut, unitsIn, unitsOut } = event.args;
  const price = rateIn * BigInt(unitsIn) + rateOut * BigInt(unitsOut);
  await context.db.insert(job).values({
    ...event.args,
    cap: (price + 999_999n) / 1_000_000n || 1n,
    postedBlock: event.block.number,
    postedLog: event.log.logIndex,
    state: OPEN,
    endedBecause: NOT_ENDED,
    providerId: 0,
    claimedAt: 0n,
    completionTok: 0,
    cost: 0n,
  });
});

ponder.on("JobRegistry:JobClaimed", async ({ event, context }) => {
  const { jobId, providerId, claimedAt } = event.args;
  await context.db.update(job, { jobId }).set({ state: CLAIMED, providerId, claimedAt });
});

ponder.on("JobRegistry:JobSettled", async ({ event, context }) => {
  const { jobId, completionTok, cost, resultCid } = event.args;
  const ended = { state: SETTLED, endedBecause: BY_SETTLE };
  await context.db.update(job, { jobId }).set({ ...ended, completionTok, cost, resultCid });
});

ponder.on("JobRegistry:JobFailed", async ({ event, context }) => {
  const { jobId } = event.args;
  await context.db.update(job, { jobId }).set({ state: CANCELLED, endedBecause: BY_FAIL });
});

ponder.on("JobRegistry:JobReclaimed", async ({ event, context }) => {
  const { jobId } = event.args;
  await context.db.update(job, { jobId }).set({ state: CANCELLED, endedBecause: BY_RECLAIM });
});

ponder.on("JobRegistry:JobCancelled", async ({ event, context }) => {
  const { jobId } = event.args;
  await context.db.update(job, { jobId }).set({ state: CANCELLED, endedBecause: BY_OWNER });
});
