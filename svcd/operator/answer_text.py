"""Convert a model's answer to human-readable text."""


def readable_text(output: object) -> str:
    """Return the text of a `chat` or `responses` answer, or the first 500 characters of any other output."""
    texts = [*_chat_texts(output), *_response_texts(output)]
    if texts:
        return "\n".join(texts)
    shown = str(output)
    return shown if len(shown) <= 500 else f"{shown[:500]}… ({len(shown)} characters)"


def _chat_texts(output: object) -> list[str]:
    choices = output.get("choices") if isinstance(output, dict) else None
    messages = [each.get("message") for each in choices or () if isinstance(each, dict)]
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return [content for content in contents if isinstance(content, str)]


def _response_texts(output: object) -> list[str]:
    items = output.get("output") if isinstance(output, dict) else None
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    parts = [part for item in found for part in item.get("content") or ()]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]
