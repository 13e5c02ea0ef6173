import { checkHead, open, sealedOf } from "../sealed_stream.mjs";

export const vectors = "result.json";

export function accept(one) {
  const sealed = sealedOf(one);
  checkHead(sealed);
  open(one, "svc-result-v1", one.job_id, sealed);
}
