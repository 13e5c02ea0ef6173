// Ask a model of the market: chat, images or embeddings, depending on the model's route. Before a request is sent, the
// page shows its price and who can read it. The button names the highest cost, which the server then enforces.

import { about, get, headers, post, randomName } from "./api.js";
import { h, table } from "./dom.js";
import { tokens } from "./format.js";
import { ApiError, address } from "./http.js";
import { live } from "./live.js";
import { follow, ledgerId } from "./progress.js";

const IMAGES = "/v1/images/generations";
const EMBEDDINGS = "/v1/embeddings";
const CHAT = "/v1/chat/completions";
const SIZES = ["512x512", "768x768", "1024x1024", "256x256"];
const PRICE_DELAY_MS = 400; // after the last key press
const MAX_RESENDS = 5;
const MAX_COMPARED_TEXTS = 8; // texts whose embeddings are compared
const ANSWER_TIMEOUT_MS = 24 * 3_600_000; // the server ends a request earlier

// The conversation is kept while the page is open, even while another view is shown.
const talk = h("ol", { class: "talk", "aria-label": "Conversation" });
const state = { model: null, messages: [], models: new Map(), price: null, priced: null, running: null };

const model = h("select", { id: "model", onchange: () => chooseModel(model.value) });
const text = h("textarea", {
  id: "message", rows: 3, placeholder: "Write a message", oninput: () => schedulePrice(),
  onkeydown: (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  },
});
const label = h("label", { for: "message", class: "unseen" }, "Message");
const size = h("select", { id: "size", onchange: () => schedulePrice() }, SIZES.map((value) => h("option", { value, selected: value === "1024x1024" }, value.replace("x", " × "))));
const sizes = h("label", { hidden: true }, "Size", size);
const maxTokens = h("input", { id: "longest", type: "number", min: 1, max: 1_000_000, step: 1, inputmode: "numeric", placeholder: "4096", oninput: () => schedulePrice() });
const limits = h("label", {}, "Longest answer, tokens", maxTokens);
const clear = h("button", { id: "clear", type: "button", class: "quiet", onclick: () => { state.messages = []; talk.replaceChildren(); schedulePrice(); } }, "New conversation");
const priceText = h("p", { class: "price", id: "price", role: "status", "aria-live": "polite" });
const send = h("button", { id: "send", type: "submit", class: "main", disabled: true }, "Send");
const stop = h("button", { id: "stop", type: "button", hidden: true, onclick: () => state.running?.abort() }, "Stop");
const form = h("form", { class: "composer", "aria-label": "Request", onsubmit: (event) => { event.preventDefault(); submit(); } },
  label, text, h("div", { class: "composer-foot" }, priceText, stop, send));
const controls = h("div", { class: "ask" },
  h("div", { class: "filters" }, h("label", { class: "grow" }, "Model", model), sizes, limits, clear),
  talk, form);

export function ask() {
  return {
    title: "Ask",
    heading: "Ask a model",
    quiet: true,
    controls,
    async read() {
      const { data } = await get("/v1/models");
      return data.map((each) => [each.id, each.svc.endpoint ?? CHAT]);
    },
    show(models) {
      state.models = new Map(models);
      if (models.length === 0) return h("p", { class: "empty" }, "The market has no model that accepts orders.");
      model.replaceChildren(...models.map(([name]) => h("option", { value: name }, name)));
      chooseModel(state.models.has(state.model) ? state.model : models[0][0]);
      return [];
    },
  };
}

function route() {
  const endpoint = state.models.get(state.model);
  return endpoint === IMAGES || endpoint === EMBEDDINGS ? endpoint : CHAT;
}

function chooseModel(name) {
  const before = state.model === null ? null : route();
  state.model = name;
  model.value = name;
  const now = route();
  if (before !== null && before !== now) state.messages = [];
  sizes.hidden = now !== IMAGES;
  limits.hidden = now !== CHAT;
  text.placeholder = { [CHAT]: "Write a message", [IMAGES]: "Describe the image", [EMBEDDINGS]: "One text in each line" }[now];
  label.textContent = { [CHAT]: "Message", [IMAGES]: "Description of the image", [EMBEDDINGS]: "Texts, one in each line" }[now];
  clear.hidden = now !== CHAT;
  schedulePrice(0);
}

function buildRequest() {
  const written = text.value.trim();
  if (written === "" || state.model === null) return null;
  if (route() === IMAGES) return { model: state.model, prompt: written, n: 1, size: size.value };
  if (route() === EMBEDDINGS) return { model: state.model, input: written.split("\n").map((line) => line.trim()).filter(Boolean) };
  const most = /^[1-9]\d{0,6}$/.test(maxTokens.value) ? { max_completion_tokens: Number(maxTokens.value) } : {};
  return { model: state.model, messages: [...state.messages, { role: "user", content: written }], ...most };
}

let timer = null;

function schedulePrice(wait = PRICE_DELAY_MS) {
  clearTimeout(timer);
  state.price = null;
  send.disabled = true;
  const body = buildRequest();
  if (body === null) {
    priceText.textContent = "The price and the readers are shown here before you send.";
    send.textContent = "Send";
    return;
  }
  timer = setTimeout(() => price(body), wait);
}

async function price(body) {
  const key = JSON.stringify(body);
  state.priced = key;
  priceText.textContent = "Requesting the price …";
  try {
    const [found, { token }] = await Promise.all([post("/page/price", { route: route(), body }), about()]);
    if (state.priced !== key) return;
    state.price = { key, amount: found.amount };
    const most = `${tokens(found.amount)} ${token}`;
    send.textContent = `Send for at most ${most}`;
    send.disabled = state.running !== null;
    priceText.replaceChildren(
      h("strong", {}, found.readers === "operator" ? "The coordinator’s operator can read it" : `Only provider ${found.provider} can read it`),
      found.readers === "operator"
        ? ", and so can the provider that claims it. "
        : ", and only you can read the answer. Another provider may get the request if this one does not claim it. ",
      `It costs ${most} or less.`, found.hedged ? " A slow answer is bought a second time, for as much again." : "");
  } catch (error) {
    if (state.priced !== key) return;
    priceText.replaceChildren(h("strong", {}, error.message));
    send.textContent = "Send";
    if (error.status === 0 || error.status >= 429) timer = setTimeout(() => state.priced === key && price(body), 3_000);
  }
}

function submit() {
  const body = buildRequest();
  if (body === null || state.running !== null || state.price?.key !== JSON.stringify(body)) return;
  const kind = route();
  const answerPlace = h("div", { class: "answer" });
  const progressPlace = h("div", { class: "progress" });
  const status = h("p", { class: "unseen", role: "status" });
  talk.append(
    h("li", { class: "turn asked" }, h("span", { class: "who" }, "You"), h("p", { class: "words" }, text.value.trim())),
    h("li", { class: "turn" }, h("span", { class: "who" }, state.model), answerPlace, progressPlace, status));
  text.value = "";
  run(kind, body, state.price.amount, { answerPlace, progressPlace, status });
  schedulePrice();
  talk.lastElementChild.scrollIntoView({ block: "nearest" });
}

// Send the request, and send it again after a lost connection. The idempotency key makes the server continue the same
// purchase.
async function run(kind, body, most, { answerPlace, progressPlace, status }) {
  const idempotency = randomName();
  const abort = new AbortController();
  const progress = follow(progressPlace, idempotency);
  state.running = abort;
  stop.hidden = false;
  const more = { "x-svc-max-amount": most, "idempotency-key": idempotency };
  for (let attempt = 0; ; attempt++) {
    try {
      if (kind === CHAT) {
        const words = h("p", { class: "words" });
        answerPlace.replaceChildren(words);
        await chat(body, more, abort.signal, words, progress);
        state.messages = [...body.messages, { role: "assistant", content: words.textContent }];
      } else {
        const answer = await requestAnswer(kind, body, more, abort.signal);
        progress.setJob(ledgerId(answer.svc));
        answerPlace.replaceChildren(kind === IMAGES ? images(answer, body) : embeddings(answer, body));
      }
      status.textContent = "The answer has arrived.";
      break;
    } catch (error) {
      if (abort.signal.aborted) {
        answerPlace.append(h("p", { class: "faint" }, "Stopped. The job is cancelled if no provider had claimed it; otherwise it is paid."));
        break;
      }
      if (error instanceof ApiError && error.status !== 0) {
        answerPlace.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
        break;
      }
      if (attempt === MAX_RESENDS) {
        answerPlace.replaceChildren(h("p", { class: "notice", role: "alert" }, "The connection to svc serve was lost. Its jobs continue: see Jobs."));
        break;
      }
      answerPlace.replaceChildren(h("p", { class: "faint", role: "status" }, "The connection to svc serve was lost. The job continues. Waiting for the server …"));
      await live.waitUntilConnected();
    }
  }
  progress.end();
  state.running = null;
  stop.hidden = true;
  schedulePrice(0);
}

async function requestAnswer(kind, body, more, signal) {
  return post(kind, body, { headers: more, signal });
}

async function chat(body, more, signal, words, progress) {
  const answer = await fetch(address(CHAT), {
    method: "POST",
    headers: headers({ "content-type": "application/json", ...more }),
    body: JSON.stringify({ ...body, stream: true }),
    signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_TIMEOUT_MS)]),
  });
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, error?.code ?? "", error?.message ?? `svc serve answered ${answer.status}.`);
  }
  progress.setJob(ledgerId({ job_id: answer.headers.get("x-svc-job-id"), tab_request: answer.headers.get("x-svc-tab-request") }));
  let complete = false;
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const chunk = JSON.parse(data);
    progress.setJob(ledgerId(chunk.svc));
    if (chunk.error) throw new ApiError(500, chunk.error.code ?? "", chunk.error.message);
    for (const choice of chunk.choices ?? []) {
      const { content, refusal } = choice.delta ?? {};
      if (content || refusal) words.append(content ?? refusal);
    }
  }
  if (!complete) throw new ApiError(0, "cut", "The answer was cut off.");
}

// Yield the data of the server-sent events in a body. Comments are skipped.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

function images(answer, { prompt }) {
  return h("div", { class: "images" }, answer.data.filter((each) => /^[A-Za-z0-9+/=]+$/.test(each.b64_json ?? "")).map((each, n) => {
    const source = `data:image/png;base64,${each.b64_json}`;
    return h("figure", {}, h("img", { src: source, alt: prompt }),
      h("figcaption", {}, h("a", { href: source, download: `image-${n + 1}.png` }, "Save the image")));
  }));
}

function embeddings(answer, { input }) {
  const vectors = answer.data.map((each) => each.embedding);
  const rows = input.map((line, n) => ({ line, vector: vectors[n] ?? [] }));
  const compared = rows.slice(0, MAX_COMPARED_TEXTS);
  return h("div", {},
    table("Embeddings", [
      { label: "Text", cell: (row) => h("span", { class: "break" }, row.line) },
      { label: "Numbers", num: true, cell: (row) => row.vector.length },
      { label: "First four", num: true, wide: true, cell: (row) => row.vector.slice(0, 4).map((each) => each.toFixed(3)).join(", ") },
    ], rows, "No embeddings."),
    compared.length > 1 && table("Similarity of the texts, from −1 to 1", [
      { label: "Text", cell: (row) => h("span", { class: "break" }, row.line) },
      ...compared.map((other, n) => ({ label: String(n + 1), num: true, cell: (row) => similarity(row.vector, other.vector) })),
    ], compared, ""));
}

function similarity(one, other) {
  const dot = one.reduce((sum, each, n) => sum + each * (other[n] ?? 0), 0);
  const length = Math.hypot(...one) * Math.hypot(...other);
  return length === 0 ? "–" : (dot / length).toFixed(2);
}
