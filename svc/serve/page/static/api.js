// Client of svc serve. The session has two halves: a cookie that scripts cannot read, and a token in local storage.

import { ApiError, TIMEOUT_MS, address, readJson } from "./http.js";

const PROGRAM = "svc serve";
const TOKEN = "svc-page-token";
const UPLOAD_LIFETIME_S = 86_400;

let cachedFacts = null; // facts that do not change while the server runs

export function headers(extra = {}) {
  return { "x-svc-page": localStorage.getItem(TOKEN) ?? "", ...extra };
}

export function hasToken() {
  return localStorage.getItem(TOKEN) !== null;
}

export function get(path, timeout = TIMEOUT_MS) {
  return readJson(PROGRAM, path, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(timeout) });
}

export function post(path, body, extra = {}) {
  return readJson(PROGRAM, path, {
    method: "POST", headers: headers({ "content-type": "application/json", ...extra.headers }), body: JSON.stringify(body),
    ...(extra.signal ? { signal: extra.signal } : {}),
  });
}

export async function openSession(link) {
  const { token } = await readJson(PROGRAM, "/page/session", { method: "POST", headers: { "x-svc-page": link } });
  localStorage.setItem(TOKEN, token);
  cachedFacts = null;
}

export async function endSession() {
  await readJson(PROGRAM, "/page/session", { method: "DELETE", headers: headers() });
  localStorage.removeItem(TOKEN);
}

export async function about() {
  cachedFacts ??= await get("/page/about");
  return cachedFacts;
}

export function forgetAbout() {
  cachedFacts = null;
}

// Copy a file to svc serve for a batch. The file is deleted after a day, because the batch keeps a separate copy.
export function upload(file) {
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("expires_after[anchor]", "created_at");
  form.append("expires_after[seconds]", String(UPLOAD_LIFETIME_S));
  form.append("file", file);
  return readJson(PROGRAM, "/v1/files", { method: "POST", headers: headers(), body: form, signal: undefined });
}

// Save the answer to a GET as a file.
export async function save(path, name) {
  const answer = await fetch(address(path), { headers: headers() }).catch(() => null);
  if (answer === null) throw new ApiError(0, "unreachable", `${PROGRAM} does not answer.`);
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, error?.code ?? "", error?.message ?? `${PROGRAM} answered ${answer.status}.`);
  }
  saveBlob(await answer.blob(), name);
}

function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function remedy(error) {
  if (error.status === 0) return "Check that svc serve is running. The page retries automatically.";
  if (error.code === "page_locked" || error.code === "link_not_valid") return "A link opens the page once, within five minutes. The session then lasts for twelve hours.";
  if (error.status === 404) return "Check the address, or choose a view in the bar above.";
  if (error.status >= 429) return "The page retries automatically.";
  return "Change the request.";
}
