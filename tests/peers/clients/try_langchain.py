"""LangChain's ChatOpenAI through `svc serve`: a chat, a stream, a tool call, structured output, the responses route."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

CHAT, TEXT = sys.argv[1:3]


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=20)


for model in (CHAT, TEXT):
    chat = ChatOpenAI(model=model, max_tokens=32, timeout=300)
    assert chat.invoke("Name a city.").content
    assert "".join(str(chunk.content) for chunk in chat.stream("Name a city."))
    called = chat.bind_tools([weather]).invoke("What is the weather in Paris?")
    (call,) = called.tool_calls
    assert "sunny" in weather.invoke(call["args"])
    place = chat.with_structured_output(Place, method="json_schema").invoke("Name a city.")
    assert isinstance(place, Place)
    print(f"right  chat, stream, tool and structured output of {model}", flush=True)
by_responses = ChatOpenAI(model=TEXT, max_tokens=16, timeout=300, use_responses_api=True)
assert by_responses.invoke("Name a city.").text
print("right  the responses route", flush=True)
