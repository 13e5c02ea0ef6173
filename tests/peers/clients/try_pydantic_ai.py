"""Pydantic AI's OpenAI models through `svc serve`: an agent that calls a tool, structured output, a stream."""

import asyncio
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

CHAT, TEXT = sys.argv[1:3]
LIMITS = {"max_tokens": 100, "timeout": 300}


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=20)


async def tried(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    asked = []
    agent = Agent(model, model_settings=LIMITS)

    @agent.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        asked.append(city)
        return "sunny"

    assert (await agent.run("What is the weather in Paris?")).output
    assert len(asked) == 1
    structured = Agent(model, output_type=NativeOutput(Place), model_settings=LIMITS)
    assert isinstance((await structured.run("Name a city.")).output, Place)
    async with Agent(model, model_settings=LIMITS).run_stream("Name a city.") as stream:
        assert [text async for text in stream.stream_text(delta=True)]


for name in (CHAT, TEXT):
    asyncio.run(tried(OpenAIChatModel(name)))
    asyncio.run(tried(OpenAIResponsesModel(name)))
    print(f"right  agent, tool, structured output and stream of {name}, by both routes", flush=True)
