"""An answer as ASGI messages."""

from starlette.types import Send

from coordinatord.api.answers import Answer


async def send_answer(send: Send, answer: Answer, *, with_body: bool = True) -> None:
    """`with_body=False` answers HEAD: the same headers, among them the length that GET would have."""
    headers = [*answer.headers]
    if answer.status not in {204, 304}:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})
