"""Use OpenAI's client: `svc serve` answers it from sealed jobs. Set OPENAI_BASE_URL and OPENAI_API_KEY first."""

from openai import OpenAI

MODEL = "demo/text-small"
QUESTION = "What is the capital of Japan?"

client = OpenAI()

answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=32)
print(answer.output_text)

stream = client.chat.completions.create(
    model=MODEL, messages=[{"role": "user", "content": "Name a colour."}], max_tokens=16, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

raw = client.chat.completions.with_raw_response.create(
    model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=32
)
print(raw.headers["x-svc-job-id"], raw.parse().usage.total_tokens, "tokens")

vectors = client.embeddings.create(model="demo/embed-small", input=["blue", "red"])
print(len(vectors.data), "vectors of", len(vectors.data[0].embedding), "numbers")
