"""Answer jobs with your own program. svcd starts it for each job, as svcd.toml says:

    [model.backend]
    kind = "exec"
    command = ["/usr/bin/python3", "/opt/provider_backend.py"]

The input and the output are JSON objects on standard input and output. This one counts words.
"""

import json
import sys
from collections import Counter

INVALID_INPUT = 65  # svcd fails the job, and the buyer is refunded

job = json.load(sys.stdin)
text = job["input"].get("input")
if not isinstance(text, str):
    print("input must be a text", file=sys.stderr)
    sys.exit(INVALID_INPUT)

words = Counter(text.lower().split()).most_common(job["units_out"])
answer = "\n".join(f"{word} {count}" for word, count in words)
message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
json.dump({"output": {"object": "response", "output": [message]}, "completion_tok": len(words)}, sys.stdout)
