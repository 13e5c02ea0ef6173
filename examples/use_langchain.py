"""Build a LangChain chain on a model that is bought job by job. Set OPENAI_BASE_URL and OPENAI_API_KEY first."""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

prompt = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")])
model = ChatOpenAI(model="demo/text-small", max_tokens=32, timeout=300)
chain = prompt | model | StrOutputParser()

countries = ["Japan", "Italy"]
for country, answer in zip(countries, chain.batch([{"country": each} for each in countries]), strict=True):
    print(f"{country}: {answer}")
