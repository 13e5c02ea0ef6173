// A buyer and a provider in one file, written from docs/protocol alone.
//
//     node stranger.mjs buy          one job; prints its output
//     node stranger.mjs buy --open   the same as an open bid, sealed to the escrow
//     node stranger.mjs batch N      a batch of N lines
//     node stranger.mjs provide      poll, claim, run and settle until killed
//
// It finds SVC_BASE_URL, SVC_PIN_GATEWAY, SVC_MODEL, SVC_INPUT, SVC_WALLET_KEY, SVC_ADDRESSES (the address book, as
// JSON) and, as a provider, SVC_BOX_KEY in its environment.
import { createHmac } from "node:crypto";
import { concat, getBytes, hexlify, keccak256, Signature, TypedDataEncoder, toBeHex, Wallet, zeroPadValue } from "ethers";
import sodium from "libsodium-wrappers";

await sodium.ready;
const { SVC_BASE_URL: BASE, SVC_PIN_GATEWAY: GATEWAY, SVC_MODEL: MODEL, SVC_INPUT: TEXT = "sealed" } = process.env;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => Math.floor(Date.now() / 1000);
const text = new TextEncoder();

// --- HTTP ---

class Refused extends Error {
  constructor(status, body) {
    super(`${status} ${JSON.stringify(body)}`);
    Object.assign(this, { status, body, code: body?.error?.code ?? body?.reason });
  }
}

/** Send one request. Return `null` without an answer. Retry errors that say so, after the stated time. */
async function once(method, path, { body, token, form, headers = {} } = {}) {
  const sent = { ...headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  if (body) sent["content-type"] = "application/json";
  let response;
  let answer = null;
  try {
    response = await fetch(BASE + path, { method, headers: sent, body: form ?? (body && JSON.stringify(body)) });
    const raw = await response.text();
    if (raw) answer = JSON.parse(raw);
  } catch {
    return null;
  }
  const again = response.headers.get("x-svc-retryable") === "true";
  return { status: response.status, body: answer, again, after: Number(response.headers.get("retry-after") ?? 0.5) };
}

async function ask(method, path, request, good = 200) {
  for (let attempt = 0; ; attempt++) {
    const answer = await once(method, path, request);
    if (answer?.status === good) return answer.body;
    if (attempt === 5 || (answer && !answer.again)) throw new Refused(answer?.status ?? 0, answer?.body);
    await sleep(1000 * Math.max(answer?.after ?? 0, 0.25 * 2 ** attempt));
  }
}

/** Fetch the bytes of an id from a gateway. They are untrusted until checked. */
async function fetched(cid) {
  for (let attempt = 0; attempt < 8; attempt++) {
    const response = await fetch(`${GATEWAY}/ipfs/${cid}`).catch(() => null);
    if (response?.ok) return new Uint8Array(await response.arrayBuffer());
    if (response && response.status !== 404 && response.status < 500) break;
    await sleep(1500);
  }
  throw new Error(`the gateway does not have ${cid}`);
}

// --- bytes ---

/** RFC 8785: JavaScript's own spelling of numbers and strings. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

function hkdf(secret, info) {
  const extracted = createHmac("sha256", new Uint8Array(32)).update(secret).digest();
  return new Uint8Array(createHmac("sha256", extracted).update(concat([info, "0x01"]).slice(2), "hex").digest());
}

const keyInfo = (label, chain, bound) =>
  getBytes(concat([text.encode(label), zeroPadValue(toBeHex(chain.chain_id), 32), chain.contracts.job_registry, bound]));

const FRAME = 65_536;
const TAGS = sodium.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE;
const FINAL = sodium.crypto_secretstream_xchacha20poly1305_TAG_FINAL;

/** 0x01 ‖ seed_wrap (80) ‖ header (24) ‖ frames */
function sealed(recipient, info, plaintext) {
  const seed = sodium.randombytes_buf(32);
  const { state, header } = sodium.crypto_secretstream_xchacha20poly1305_init_push(hkdf(seed, info));
  const parts = [Uint8Array.of(1), sodium.crypto_box_seal(seed, recipient), header];
  let at = 0;
  do {
    const piece = plaintext.subarray(at, at + FRAME);
    at += FRAME;
    const tag = at >= plaintext.length ? FINAL : TAGS;
    parts.push(sodium.crypto_secretstream_xchacha20poly1305_push(state, piece, null, tag));
  } while (at < plaintext.length);
  return getBytes(concat(parts));
}

function openedStream(key, ciphertext) {
  const header = ciphertext.subarray(0, 24);
  const state = sodium.crypto_secretstream_xchacha20poly1305_init_pull(header, key);
  const parts = [];
  let tag = TAGS;
  for (let at = 24; at < ciphertext.length; at += FRAME + 17) {
    if (tag !== TAGS) throw new Error("bytes after the last frame");
    const found = sodium.crypto_secretstream_xchacha20poly1305_pull(state, ciphertext.subarray(at, at + FRAME + 17));
    if (!found) throw new Error("undecryptable");
    tag = found.tag;
    parts.push(found.message);
  }
  if (tag !== FINAL) throw new Error("the stream ends early");
  return getBytes(concat(parts));
}

const wrapOf = (container) => container.subarray(1, 81);
const ctHash = (container) => keccak256(container.subarray(81));
const commitment = (container) => keccak256(concat(["0x01", wrapOf(container), ctHash(container)]));

function withSecret(secret, info, container) {
  if (container[0] !== 1 || container.length < 122) throw new Error("no container");
  const box = sodium.crypto_scalarmult_base(secret);
  const seed = sodium.crypto_box_seal_open(wrapOf(container), box, secret);
  return openedStream(hkdf(seed, info), container.subarray(81));
}

/** Parse canonical JSON with exactly these members. */
function strictly(plaintext, members, optional = []) {
  const raw = new TextDecoder("utf-8", { fatal: true }).decode(plaintext);
  const value = JSON.parse(raw);
  const names = Object.keys(value);
  const known = members.every((name) => names.includes(name)) && names.every((n) => [...members, ...optional].includes(n));
  if (canonical(value) !== raw || !known || value.v !== 1) throw new Error("malformed");
  return value;
}

// --- signatures ---

const FIELDS = {
  Order: "bytes32 c,uint32 modelId,uint32 slaSecs,uint128 rateIn,uint128 rateOut,uint32 unitsIn,uint32 unitsOut,uint32 designated,uint64 expiresAt",
  Claim: "bytes32 jobId,uint64 issuedAt",
  Settle: "bytes32 jobId,uint32 completionTok,uint64 issuedAt",
  Fail: "bytes32 jobId,uint64 issuedAt",
  SetIdentity: "bytes32 boxKey,bytes evidence,uint64 issuedAt",
  RequestCapacity: "uint32 n,uint64 issuedAt",
  AskSnapshot: "uint32 providerId,uint64 signedAt,Ask[] quotes",
  Ask: "uint32 modelId,uint32 sla,uint128 rateIn,uint128 rateOut",
  ReceiveWithAuthorization: "address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce",
  Release: "bytes32 jobId,bytes seedWrap,bytes32 ctHash,bytes32 responsePubkey,uint64 issuedAt",
  SvcSession: "address address,string nonce",
  ResultKey: "string purpose",
};
const fieldsOf = (name) =>
  FIELDS[name].split(",").map((field) => ({ type: field.split(" ")[0], name: field.split(" ")[1] }));

class Signer {
  constructor(chain, key) {
    this.chain = chain;
    this.wallet = new Wallet(key);
    this.owner = this.wallet.address.toLowerCase();
  }

  sign(kind, message) {
    const { chain_id: chainId, contracts, token_domain: token } = this.chain;
    const of = (name, version, verifyingContract) => ({ name, version, chainId, ...(verifyingContract && { verifyingContract }) });
    const domains = {
      AskSnapshot: of("SVC Asks", "2", contracts.ask_registry),
      SetIdentity: of("SVC Providers", "2", contracts.provider_registry),
      RequestCapacity: of("SVC Providers", "2", contracts.provider_registry),
      ReceiveWithAuthorization: of(token.name, token.version, contracts.paytoken),
      Release: of("SVC Escrow", "1"),
      SvcSession: of("SVC Session", "1"),
      ResultKey: of("SVC Results", "1"),
    };
    const types = { [kind]: fieldsOf(kind), ...(kind === "AskSnapshot" && { Ask: fieldsOf("Ask") }) };
    const domain = domains[kind] ?? of("SVC Jobs", "2", contracts.job_registry);
    return Signature.from(this.wallet.signingKey.sign(TypedDataEncoder.hash(domain, types, message))).serialized;
  }

  resultSecret() {
    return hkdf(getBytes(this.sign("ResultKey", { purpose: "result key" })), text.encode("svc-result-key-v1"));
  }

  async signIn(role) {
    const { nonce } = await ask("GET", `/auth/nonce?address=${this.owner}`);
    const signature = this.sign("SvcSession", { address: this.owner, nonce });
    const session = await ask("POST", "/auth/session", { body: { address: this.owner, nonce, signature, role } });
    this.token = session.token;
    return session;
  }
}

async function marketOf() {
  const chain = await ask("GET", "/evm/chain");
  const book = process.env.SVC_ADDRESSES ? JSON.parse(process.env.SVC_ADDRESSES) : null;
  const { job_registry, provider_registry, ask_registry, paytoken } = chain.contracts;
  const same = (one, other) => one.toLowerCase() === other.toLowerCase();
  if (
    book &&
    !(
      book.chainId === chain.chain_id &&
      same(book.jobRegistry, job_registry) &&
      same(book.providerRegistry, provider_registry) &&
      same(book.askRegistry, ask_registry) &&
      same(book.paytoken, paytoken) &&
      book.tokenDomain.name === chain.token_domain.name &&
      book.tokenDomain.version === chain.token_domain.version
    )
  ) {
    throw new Error("this coordinator serves another deployment than the address book");
  }
  return chain;
}

// --- prices ---

const ceiling = (a, b) => (a + b - 1n) / b;
const most = (a, b) => (a > b ? a : b);
const unitsIn = (input) => Math.max(1, Math.ceil(text.encode(canonical(input)).length / 4));
const priced = (order, unitsOut) =>
  most(1n, ceiling(BigInt(order.rate_in) * BigInt(order.units_in) + BigInt(order.rate_out) * BigInt(unitsOut), 1_000_000n));

/** Return the quote's amount if it matches the formulas and the known fees. */
function amountOf(order, quote, chain, gasFee) {
  const cap = priced(order, order.units_out);
  const fee = (cap * BigInt(chain.fee_bps)) / 10_000n;
  const amount = cap + fee + BigInt(quote.gas_fee);
  if (BigInt(quote.cap) !== cap || BigInt(quote.fee) !== fee || BigInt(quote.amount) !== amount || BigInt(quote.gas_fee) > gasFee) {
    throw new Error(`a quote of ${quote.amount} where ${amount} is due`);
  }
  return amount;
}

// --- buying ---

const MAX_GAS_FEE = 10_000_000n; // highest fee that this buyer pays for relaying

async function escrowKey() {
  const { escrow_public_key: key, evidence } = await ask("GET", "/key");
  const { createHash } = await import("node:crypto");
  const due = createHash("sha256").update(key, "hex").update("svc-coordinator-escrow-v1").digest("hex");
  if (evidence.report_data !== due || evidence.debug) throw new Error("evidence of another key");
  return getBytes(`0x${key}`);
}

/** Return a signed order with its container and payment. */
async function order(signer, input, open) {
  const model = await ask("GET", `/v1/models/${MODEL}`);
  const sizes = { model_id: Number(model.svc.model_id), sla_secs: 3600, units_in: unitsIn(input), units_out: input.max_output_tokens };
  const { candidates } = await ask("POST", "/v1/jobs", { body: sizes }, 402);
  const wanted = process.env.SVC_PROVIDER;
  const best = candidates.find((candidate) => !wanted || candidate.provider_id === wanted);
  if (!best) throw new Error("no provider sells this now");
  const secret = signer.resultSecret();
  const envelope = { v: 1, owner: signer.owner, model: MODEL, input, result_key: hexlify(sodium.crypto_scalarmult_base(secret)) };
  const recipient = open ? await escrowKey() : getBytes(best.box_key);
  const container = sealed(recipient, keyInfo("svc-dek-v1", signer.chain, signer.owner), text.encode(canonical(envelope)));
  const c = commitment(container);
  const terms = { ...sizes, rate_in: best.rate_in, rate_out: best.rate_out, designated: open ? 0 : Number(best.provider_id), expires_at: now() + 3600 };
  const signature = signer.sign("Order", {
    c,
    modelId: terms.model_id,
    slaSecs: terms.sla_secs,
    rateIn: terms.rate_in,
    rateOut: terms.rate_out,
    unitsIn: terms.units_in,
    unitsOut: terms.units_out,
    designated: terms.designated,
    expiresAt: terms.expires_at,
  });
  const body = { c, ...terms, owner: signer.owner, job_id: keccak256(concat([signer.owner, c])), signature };
  return { body, container };
}

function paid(signer, { body, container }, quote) {
  const amount = amountOf(body, quote, signer.chain, MAX_GAS_FEE);
  const auth_sig = signer.sign("ReceiveWithAuthorization", {
    from: signer.owner,
    to: signer.chain.contracts.job_registry,
    value: amount,
    validAfter: 0,
    validBefore: body.expires_at + 1,
    nonce: body.job_id,
  });
  return { ...body, auth_sig, amount: String(amount), container: Buffer.from(container).toString("base64") };
}

/** Post the order. After any lost answer, send the same order again until the job exists. */
async function submit(signer, prepared) {
  let { quote } = await ask("POST", "/v1/jobs", { body: prepared.body }, 402);
  for (let attempt = 0; attempt < 6; attempt++) {
    const answer = await once("POST", "/v1/jobs", { body: paid(signer, prepared, quote) });
    if (answer?.status === 201) return;
    if (answer?.status === 409 && answer.body.quote) {
      quote = answer.body.quote;
      continue;
    }
    if (answer?.body?.error?.code === "DuplicateJob" || answer?.status === 504) return;
    if (answer && !answer.again) throw new Refused(answer.status, answer.body);
    await sleep(1000 * Math.max(answer?.after ?? 0, 0.5));
    if ((await once("GET", `/v1/jobs/${prepared.body.job_id}`))?.status === 200) return;
  }
  throw new Error("no response says whether the job was posted");
}

async function ended(id, until) {
  for (let pause = 250; now() < until; pause = Math.min(5000, pause * 1.5)) {
    const answer = await once("GET", `/v1/jobs/${id}`);
    if (answer?.status === 200) {
      if (answer.body.id !== id) throw new Error("the response is about another job");
      if (["completed", "failed", "cancelled"].includes(answer.body.status)) return answer.body;
    }
    await sleep(pause);
  }
  throw new Error(`${id} has not ended`);
}

async function resultOf(signer, job, cid) {
  const plaintext = withSecret(signer.resultSecret(), keyInfo("svc-result-v1", signer.chain, job), await fetched(cid));
  const body = strictly(plaintext, ["v", "job_id", "output", "usage"]);
  if (body.job_id !== job) throw new Error("the result of another job");
  return body.output;
}

async function buy(open) {
  const signer = new Signer(await marketOf(), process.env.SVC_WALLET_KEY);
  const prepared = await order(signer, { input: TEXT, max_output_tokens: 64 }, open);
  await submit(signer, prepared);
  const id = prepared.body.job_id;
  const job = await ended(id, prepared.body.expires_at + 3600 + 120);
  if (job.status !== "completed") throw new Error(`the job ${job.status}`);
  console.log(JSON.stringify(await resultOf(signer, id, job.result_cid)));
}

async function batch(count) {
  const signer = new Signer(await marketOf(), process.env.SVC_WALLET_KEY);
  const orders = [];
  for (let n = 0; n < count; n++) {
    const prepared = await order(signer, { input: `${TEXT} ${n}`, max_output_tokens: 64 }, false);
    const { quote } = await ask("POST", "/v1/jobs", { body: prepared.body }, 402);
    orders.push(paid(signer, prepared, quote));
  }
  // The last line is invalid, so that there is an error line as well.
  const lines = [...orders.map((one) => JSON.stringify(one)), '{"url": "/v1/responses"}'].join("\n");
  const { token } = await signer.signIn("client");
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("file", new Blob([lines]), "lines.jsonl");
  const file = await ask("POST", "/v1/files", { token, form });
  const body = { input_file_id: file.id, endpoint: "/v1/responses", completion_window: "1h", metadata: { by: "a stranger" } };
  const headers = { "idempotency-key": hexlify(sodium.randombytes_buf(16)) };
  let made = await ask("POST", "/v1/batches", { token, body, headers });
  while (!["completed", "failed", "expired", "cancelled"].includes(made.status)) {
    await sleep(500); // a real client waits a minute
    made = await ask("GET", `/v1/batches/${made.id}`, { token });
  }
  const read = async (id) => (await (await fetch(`${BASE}/v1/files/${id}/content`, { headers: { authorization: `Bearer ${token}` } })).text()).trim().split("\n").map((line) => JSON.parse(line));
  const outputs = made.output_file_id ? await read(made.output_file_id) : [];
  const results = {};
  for (const { svc } of outputs) results[svc.job_id] = await resultOf(signer, svc.job_id, svc.result_cid);
  const errors = made.error_file_id ? (await read(made.error_file_id)).map(({ error, svc }) => [svc.line, error.code]) : [];
  console.log(JSON.stringify({ status: made.status, outputs: orders.map((one) => results[one.job_id] ?? null), errors }));
}

// --- providing ---

const RATES = { rate_in: "90000", rate_out: "180000" }; // a little below all others

class Provider {
  async begin() {
    this.signer = new Signer(await marketOf(), process.env.SVC_WALLET_KEY);
    this.box = getBytes(process.env.SVC_BOX_KEY);
    this.id = (await this.signer.signIn("provider")).provider_id;
    this.model = (await ask("GET", `/v1/models/${MODEL}`)).svc.model_id;
    await this.announce();
    this.taken = new Set();
    this.free = 8;
  }

  /** Publish the box key, capacity and prices that are missing. */
  async announce() {
    const { signer } = this;
    const record = await ask("GET", `/evm/providers/${this.id}`);
    const boxKey = hexlify(sodium.crypto_scalarmult_base(this.box));
    let issuedAt = now();
    if (record.box_key !== boxKey) {
      const signature = signer.sign("SetIdentity", { boxKey, evidence: "0x", issuedAt });
      await this.op({ op: "set_identity", box_key: boxKey, evidence: "0x", issued_at: issuedAt, signature });
    }
    if (Number(record.capacity) < 8) {
      const signature = signer.sign("RequestCapacity", { n: 16, issuedAt });
      await this.op({ op: "request_capacity", n: 16, issued_at: issuedAt, signature });
    }
    const quotes = [{ modelId: this.model, sla: 3600, rateIn: RATES.rate_in, rateOut: RATES.rate_out }];
    const signature = signer.sign("AskSnapshot", { providerId: this.id, signedAt: issuedAt, quotes });
    const told = quotes.map((quote) => ({ model_id: Number(quote.modelId), sla: quote.sla, ...RATES }));
    const snapshot = { provider_id: this.id, signed_at: issuedAt, quotes: told };
    const answer = await once("PUT", "/evm/asks", { token: signer.token, body: { snapshot, signature } });
    if (answer?.status !== 200) console.error("asks", answer?.status, JSON.stringify(answer?.body));
  }

  /** Send an op until it is answered. Retries use the same bytes, with a new session if the old one is unknown. */
  async op(body, attempts = 8) {
    for (let attempt = 0; ; attempt++) {
      const answer = await once("POST", "/evm/ops", { token: this.signer.token, body });
      if (answer?.status === 401) await this.signer.signIn("provider");
      else if (answer && !answer.again) return answer;
      else await sleep(1000 * Math.max(answer?.after ?? 0, 0.5));
      if (attempt === attempts) return answer;
    }
  }

  async run() {
    await this.begin();
    console.error(`provider ${this.id} is open`);
    for (;;) {
      const query = `state=Open&model=${this.model}&free=${this.free}`;
      const polled = await once("GET", `/evm/jobs?${query}`, { token: this.signer.token });
      if (polled?.status === 401) await this.signer.signIn("provider");
      for (const job of polled?.status === 200 ? polled.body.jobs : []) {
        const mine = job.designated === "0" || job.designated === String(this.id);
        if (this.free > 0 && mine && !this.taken.has(job.job_id) && Number(job.expires_at) > now() + 5) {
          this.taken.add(job.job_id);
          this.free -= 1;
          this.work(job).catch((error) => console.error(job.job_id, error.message)).finally(() => { this.free += 1; });
        }
      }
      await sleep(500);
    }
  }

  async state(id) {
    return (await ask("GET", `/evm/jobs/${id}`));
  }

  async work(job) {
    const jobId = job.job_id;
    if (!(await this.claimed(jobId))) return;
    const until = now() + Number(job.sla_secs);
    let settle;
    try {
      settle = await this.result(job);
    } catch (error) {
      console.error(jobId, "fails:", error.message);
      const issued_at = now();
      await this.op({ op: "fail", job_id: jobId, issued_at, signature: this.signer.sign("Fail", { jobId, issuedAt: issued_at }) });
      return;
    }
    while (now() < until) {
      const issued_at = now();
      const signature = this.signer.sign("Settle", { jobId, completionTok: settle.completion_tok, issuedAt: issued_at });
      const answer = await this.op({ op: "settle", job_id: jobId, ...settle, issued_at, signature });
      if (answer?.status === 201) return;
      const row = await this.state(jobId);
      if (row.state !== 1) return; // it has ended, by this settle or otherwise
      if (answer?.status === 409 && answer.body.reason !== "StaleOp") return;
      await sleep(1000);
    }
  }

  /** Return true if the job is this provider's after a claim. */
  async claimed(jobId) {
    const issued_at = now();
    const signature = this.signer.sign("Claim", { jobId, issuedAt: issued_at });
    const answer = await this.op({ op: "claim", job_id: jobId, issued_at, signature });
    if (answer?.status === 201) return true;
    if (answer?.status === 409 && answer.body.reason !== "NotOpen") return false;
    for (let look = 0; look < 5; look++) {
      const row = await this.state(jobId);
      if (row.state !== 0) return row.state === 1 && row.provider_id === String(this.id);
      await sleep(1000);
    }
    return false;
  }

  /** Return the settle's result, or throw if the job must be failed. */
  async result(job) {
    const { signer } = this;
    const container = await fetched(job.task_cid);
    if (commitment(container) !== job.c) throw new Error("bytes that are not the container");
    const info = keyInfo("svc-dek-v1", signer.chain, job.owner);
    const plaintext = job.designated === "0"
      ? openedStream(await this.released(job, container), container.subarray(81))
      : withSecret(this.box, info, container);
    const envelope = strictly(plaintext, ["v", "owner", "model", "input", "result_key"], ["custom_id"]);
    if (envelope.owner !== job.owner || envelope.model !== MODEL) throw new Error("the envelope of another order");
    if (unitsIn(envelope.input) > Number(job.units_in)) throw new Error("more input than is paid for");
    const output = { text: String(envelope.input.input).toUpperCase() };
    const tokens = Math.min(Number(job.units_out), 1 + Math.floor(output.text.length / 4));
    const body = { v: 1, job_id: job.job_id, output, usage: { output_tokens: tokens } };
    const sealedResult = sealed(getBytes(envelope.result_key), keyInfo("svc-result-v1", signer.chain, job.job_id), text.encode(canonical(body)));
    return { completion_tok: tokens, result: Buffer.from(sealedResult).toString("base64") };
  }

  async released(job, container) {
    const { publicKey, privateKey } = sodium.crypto_box_keypair();
    const issued_at = now();
    const message = { jobId: job.job_id, seedWrap: wrapOf(container), ctHash: ctHash(container), responsePubkey: publicKey, issuedAt: issued_at };
    const { dek_sealed } = await ask("POST", "/release", {
      body: {
        job_id: job.job_id,
        seed_wrap: Buffer.from(message.seedWrap).toString("base64"),
        ct_hash: message.ctHash,
        response_pubkey: hexlify(publicKey).slice(2),
        issued_at,
        signature: this.signer.sign("Release", message),
      },
    });
    return sodium.crypto_box_seal_open(new Uint8Array(Buffer.from(dek_sealed, "base64")), publicKey, privateKey);
  }
}

const [command, argument] = process.argv.slice(2);
try {
  if (command === "buy") await buy(argument === "--open");
  else if (command === "batch") await batch(Number(argument));
  else if (command === "provide") await new Provider().run();
  else throw new Error("buy [--open] | batch N | provide");
} catch (error) {
  console.error(`stranger: ${error.message}`);
  process.exitCode = 1;
}
