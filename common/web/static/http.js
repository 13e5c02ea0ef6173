// Read JSON from the program that serves this page. Paths are relative to the page, so that it works below a proxy's prefix.

export const TIMEOUT_MS = 15_000;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status; // 0: no response
    this.code = code;
  }
}

export function address(path) {
  return new URL(path.replace(/^\//, ""), new URL(".", document.baseURI.split("#")[0]));
}

// `program` is the name of the server in error messages, `options` are those of fetch.
export async function readJson(program, path, options = {}) {
  let answer;
  try {
    answer = await fetch(address(path), { signal: AbortSignal.timeout(TIMEOUT_MS), ...options, headers: { accept: "application/json", ...options.headers } });
  } catch {
    throw new ApiError(0, "unreachable", `${program} does not answer.`);
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok) return body;
  const error = body?.error ?? {};
  throw new ApiError(answer.status, error.code ?? error.type ?? "", error.message ?? `${program} answered ${answer.status}.`);
}
