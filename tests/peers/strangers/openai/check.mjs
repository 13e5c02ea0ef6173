// Tests every row of docs/developers/openai.md with OpenAI's client for Node, both supported and unsupported calls.
//
//     node check.mjs PAGE LINES
//
// PAGE is the page. LINES is a batch file with one order that a provider settles. OPENAI_BASE_URL and OPENAI_API_KEY (a
// session's token) are in the environment.
import { createReadStream, readFileSync } from "node:fs";
import OpenAI from "openai";

const [page, linesFile] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0 });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const must = (holds, what) => {
  if (!holds) throw new Error(what);
};
const lines = () => createReadStream(linesFile);
const uploaded = () => client.files.create({ purpose: "batch", file: lines() });
const asked = { endpoint: "/v1/responses", completion_window: "1h" };

const works = {
  "models.list": async () => {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    must(names.includes("demo/text-small"), `models ${names}`);
  },
  "models.retrieve": async () => must((await client.models.retrieve("demo/text-small")).svc.model_id === "1", "another model"),
  "files.create": async () => must((await uploaded()).purpose === "batch", "another purpose"),
  "files.retrieve": async () => {
    const file = await uploaded();
    must((await client.files.retrieve(file.id)).bytes === file.bytes, "another file");
  },
  "files.content": async () => {
    const file = await uploaded();
    must((await (await client.files.content(file.id)).text()) === readFileSync(linesFile, "utf-8"), "other bytes");
  },
  "batches.create": async () => {
    const body = { ...asked, input_file_id: (await uploaded()).id, metadata: { by: "node" } };
    const options = { headers: { "idempotency-key": `node-${process.pid}` } };
    const [one, again] = [await client.batches.create(body, options), await client.batches.create(body, options)];
    must(one.id === again.id && one.metadata.by === "node", "two batches");
  },
  "batches.retrieve": async () => {
    let batch = await client.batches.create({ ...asked, input_file_id: (await uploaded()).id });
    for (let look = 0; batch.status !== "completed" && look < 200; look++) {
      await sleep(200);
      batch = await client.batches.retrieve(batch.id);
    }
    const { completed, failed, total } = batch.request_counts;
    must(batch.status === "completed" && completed + failed === total && total === 1, `${batch.status} ${total}`);
  },
  "batches.list": async () => {
    const ids = [];
    for await (const batch of client.batches.list({ limit: 1 })) ids.push(batch.id);
    must(ids.length >= 2 && new Set(ids).size === ids.length, `batches ${ids}`);
  },
  "batches.cancel": async () => {
    const batch = await client.batches.create({ ...asked, input_file_id: (await uploaded()).id });
    const answer = await client.batches.cancel(batch.id).catch((error) => error);
    must(["cancelling", "batch_not_cancellable"].includes(answer.status ?? "") || answer.code === "batch_not_cancellable", `${answer}`);
  },
};

const refused = {
  "files.create, another purpose": () => client.files.create({ purpose: "fine-tune", file: lines() }),
  "files.list": () => client.files.list(),
  "files.delete": () => client.files.delete("file-0123456789abcdef01234567"),
  "uploads.create": () => client.uploads.create({ bytes: 1, filename: "a", mime_type: "a/b", purpose: "batch" }),
  "batches.create, another endpoint": async () =>
    client.batches.create({ ...asked, endpoint: "/v1/chat/completions", input_file_id: (await uploaded()).id }),
  "responses.create": () => client.responses.create({ model: "demo/text-small", input: "hello" }),
  "chat.completions.create": () => client.chat.completions.create({ model: "demo/text-small", messages: [] }),
  "embeddings.create": () => client.embeddings.create({ model: "demo/text-small", input: "hello" }),
};

/** Return the rows of a section's table: the call, and the other cells. */
function rows(section) {
  const found = readFileSync(page, "utf-8").split(`\n## ${section}\n`)[1].split("\n## ")[0];
  return found.split("\n").filter((line) => line.startsWith("| `")).map((line) => {
    const [call, ...cells] = line.slice(2, -2).split(" | ");
    return [call.replaceAll("`", ""), ...cells.map((cell) => cell.replaceAll("`", ""))];
  });
}

let wrong = 0;
async function tried(call, check) {
  try {
    must(check, `no check of ${call}: the page promises it`);
    await check();
    console.log(`right  ${call}`);
  } catch (error) {
    wrong += 1;
    console.log(`WRONG  ${call}: ${error.message}`);
  }
}

for (const [call] of rows("What works")) await tried(call, works[call]);
for (const [call, answer] of rows("What does not")) {
  if (answer.includes("Python")) continue;
  await tried(call, async () => {
    const error = await refused[call]?.().then(() => null, (thrown) => thrown);
    must(error !== undefined, "no check of it");
    const came = error === null ? "accepted" : `${error.status} ${error.code ?? error.type}`;
    must(came === answer, `${came} and not ${answer}`);
  });
}
process.exitCode = wrong ? 1 : 0;
