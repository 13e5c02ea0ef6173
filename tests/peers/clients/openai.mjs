// OpenAI's client for Node through `svc serve`: whole answers, streams, embeddings' errors, files and batches.
//
//     node openai.mjs CHAT TEXT
//
// OPENAI_BASE_URL and OPENAI_API_KEY are in the environment. The package is the one of tests/peers/strangers/openai.
import { createRequire } from "node:module";
const require = createRequire(new URL("../strangers/openai/check.mjs", import.meta.url));
const OpenAI = require("openai").default ?? require("openai");
const { toFile } = require("openai");

const [chat, text] = process.argv.slice(2);
const client = new OpenAI({ timeout: 300_000 });
const messages = [{ role: "user", content: "Name a city." }];
const must = (holds, what) => {
  if (!holds) throw new Error(what);
};

for (const model of [chat, text]) {
  const whole = await client.chat.completions.create({ model, messages, max_completion_tokens: 4 });
  must(whole.choices[0].message.content, "no content");
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, max_completion_tokens: 4, stream: true }))
    streamed += chunk.choices[0]?.delta?.content ?? "";
  must(streamed, "no deltas");
  const kinds = [];
  for await (const event of await client.responses.create({ model, input: "Name a city.", max_output_tokens: 4, stream: true }))
    kinds.push(event.type);
  must(kinds.includes("response.output_text.delta") && /completed|incomplete/.test(kinds.at(-1)), `${kinds}`);
  const runner = client.chat.completions.stream({ model, messages, max_completion_tokens: 4 });
  must((await runner.finalContent()) !== undefined, "no final content");
  console.log(`right  whole and streamed answers of ${model}`);
}
const error = await client.responses.create({ model: "no/such", input: "a" }).then(() => null, (thrown) => thrown);
must(error?.status === 404 && error.code === "model_not_found", `${error}`);
const line = { custom_id: "one", method: "POST", url: "/v1/responses", body: { model: text, input: "Name a city.", max_output_tokens: 4 } };
const file = await client.files.create({ purpose: "batch", file: await toFile(Buffer.from(JSON.stringify(line)), "lines.jsonl"), expires_after: { anchor: "created_at", seconds: 3600 } });
must(file.expires_at === file.created_at + 3600, "no expiry");
let batch = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/responses", completion_window: "1h" });
while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
  await new Promise((done) => setTimeout(done, 500));
  batch = await client.batches.retrieve(batch.id);
}
const output = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
must(output.custom_id === "one" && output.response.body.object === "response", JSON.stringify(output));
const ids = [];
for await (const each of client.files.list({ limit: 1 })) ids.push(each.id);
must(ids.includes(file.id) && ids.includes(batch.output_file_id), `${ids}`);
const other = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/responses", completion_window: "1h" });
must(/^cancell(ing|ed)$/.test((await client.batches.cancel(other.id)).status), "not cancelling");
const batches = [];
for await (const each of client.batches.list({ limit: 1 })) batches.push(each.id);
must(batches[0] === other.id && batches.includes(batch.id), `${batches}`);
must((await client.files.delete(file.id)).deleted, "not deleted");
console.log("right  errors, files and batches");
