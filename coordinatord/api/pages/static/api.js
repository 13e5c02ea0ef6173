// Client of the coordinator's public routes.

import { ApiError, TIMEOUT_MS, address, readJson } from "./http.js";

const TOKEN = "svc-session";

export async function get(path, { session = false } = {}) {
  const headers = session ? { authorization: `Bearer ${token() ?? ""}` } : {};
  return readJson("The coordinator", path, { headers, credentials: "omit" });
}

// Like `get`, but a missing route or an empty answer is not an error.
export async function getIfAny(path, options) {
  try {
    return await get(path, options);
  } catch (error) {
    if (error instanceof ApiError && [403, 404, 405].includes(error.status)) return null;
    throw error;
  }
}

// Return the readiness report, which is also the body of a 503.
export async function readiness() {
  const answer = await fetch(address("/readyz"), { signal: AbortSignal.timeout(TIMEOUT_MS), credentials: "omit", cache: "no-store" });
  return answer.json();
}

export function remedy(error) {
  if (error.status === 0) return "Check your network. The page retries automatically.";
  if (error.status === 401) return "The session has ended or is not this coordinator’s: paste a new one.";
  if (error.status === 404) return "Check the id. It may belong to another market, or its transaction is not mined yet.";
  if (error.status === 429) return "Too many requests from your address. The page retries automatically.";
  if (error.code === "not_ready") return "The index is catching up with the chain. The page retries automatically.";
  if (error.status >= 500) return "The page retries automatically. If the error stays, report it to the operator.";
  return "Change the request.";
}

// The session token stays in this tab's memory. It is lost with the tab and never part of a URL.
export function token() {
  return sessionStorage.getItem(TOKEN);
}

export function keepToken(text) {
  sessionStorage.setItem(TOKEN, text);
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
}

// Data that every view needs and that rarely changes.
const facts = new Map();

async function cached(name, seconds, read) {
  const entry = facts.get(name);
  if (entry && Date.now() < entry.until) return entry.value;
  const value = await read();
  facts.set(name, { value, until: Date.now() + seconds * 1000 });
  return value;
}

export const deployment = () => cached("deployment", 30, () => get("/evm/chain"));

export const models = () => cached("models", 30, async () => {
  const { data } = await get("/v1/models?limit=1000");
  return new Map(data.map((model) => [model.svc.model_id, model]));
});
