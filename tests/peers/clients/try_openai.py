"""OpenAI's client for Python through `svc serve`: sync, async, streams, tools, structured output, files, batches."""

import asyncio
import json
import sys
import time

import openai

CHAT, TEXT = sys.argv[1:3]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "the weather of a city", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
PLACE = {**CITY, "additionalProperties": False}
ASKED = [{"role": "user", "content": "Name a city."}]
client = openai.OpenAI(timeout=300)


def chat(model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=ASKED, max_completion_tokens=8)
    assert answer.choices[0].message.content, answer
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def chat_stream(model: str) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=model, messages=ASKED, max_completion_tokens=8, stream=True, stream_options=options
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in {"stop", "length"}


def response_stream(model: str) -> None:
    with client.responses.stream(model=model, input="Name a city.", max_output_tokens=8) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert events[-1].response.output_text == text != ""


def tools(model: str) -> None:
    said = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(model=model, messages=said, tools=TOOLS, max_completion_tokens=32)
    (call,) = first.choices[0].message.tool_calls or ()
    assert "city" in json.loads(call.function.arguments), first
    said += [first.choices[0].message.model_dump(exclude_none=True)]
    said += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    last = client.chat.completions.create(model=model, messages=said, tools=TOOLS, max_completion_tokens=8)
    assert last.choices[0].message.content


def structured(model: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    answer = client.chat.completions.create(
        model=model, messages=ASKED, response_format=wanted, max_completion_tokens=40
    )
    assert "city" in json.loads(answer.choices[0].message.content or "")


async def both_at_once() -> None:
    async with openai.AsyncOpenAI(timeout=300) as awaited:
        one, other = await asyncio.gather(
            awaited.chat.completions.create(model=CHAT, messages=ASKED, max_completion_tokens=4),
            awaited.responses.create(model=TEXT, input="Name a city.", max_output_tokens=4),
        )
        assert one.choices[0].message.content
        assert other.output_text
        stream = await awaited.chat.completions.create(model=TEXT, messages=ASKED, max_completion_tokens=4, stream=True)
        assert [chunk async for chunk in stream]


def batch() -> None:
    body = {"model": CHAT, "messages": ASKED, "max_completion_tokens": 4}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    life = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch", expires_after=life)
    assert file.expires_at == file.created_at + 3600
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h")
    while made.status in {"validating", "in_progress", "finalizing"}:
        time.sleep(0.5)
        made = client.batches.retrieve(made.id)
    assert made.output_file_id is not None, made
    (output,) = client.files.content(made.output_file_id).text.splitlines()
    assert json.loads(output)["custom_id"] == "one"
    assert json.loads(output)["response"]["body"]["choices"][0]["message"]["content"]
    assert {file.id, made.output_file_id} <= {each.id for each in client.files.list(limit=1)}
    assert made.id in [each.id for each in client.batches.list(limit=1)]
    other = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h")
    assert client.batches.cancel(other.id).status in {"cancelling", "cancelled"}
    assert client.files.delete(file.id).deleted
    while other.status in {"validating", "in_progress", "finalizing", "cancelling"}:
        time.sleep(0.5)
        other = client.batches.retrieve(other.id)
    assert other.status == "cancelled", other


assert {CHAT, TEXT} <= {model.id for model in client.models.list()}
for one in (CHAT, TEXT):
    for check in (chat, chat_stream, response_stream, tools, structured):
        check(one)
        print(f"right  {check.__name__} of {one}", flush=True)
asyncio.run(both_at_once())
batch()
print("right  async, files and batches", flush=True)
