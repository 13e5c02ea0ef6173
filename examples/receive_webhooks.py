"""Receive signed messages about your jobs. Outside of a devnet the endpoint must be https on a public address."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from threading import Thread
from typing import Any

from common.refusal import Refused
from svc import SyncClient
from svc.webhooks import verify_webhook

messages: Queue[dict[str, Any]] = Queue()
secrets: list[str] = []
seen: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            message_id = verify_webhook(secrets[0], self.headers, body)
        except Refused as refused:
            self.send_error(400, str(refused))
            return
        self.send_response(204)
        self.end_headers()
        if message_id not in seen:  # a message may come twice
            seen.add(message_id)
            messages.put(json.loads(body))

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


with HTTPServer(("127.0.0.1", 0), Receiver) as server, SyncClient() as client:
    Thread(target=server.serve_forever, daemon=True).start()
    added = client.webhooks.add(f"http://127.0.0.1:{server.server_port}/market", ["job.settled"])
    secrets.append(added.secret)
    print(f"{added.id} receives job.settled")
    job = client.submit(client.prepare("demo/text-small", {"input": "hello", "max_output_tokens": 8}, window="1h"))
    while True:
        message = messages.get(timeout=120)
        print(f"{message['type']} of {message['data']['job_id']}")
        if message["data"]["job_id"] == job.job_id:
            break
    print(client.open(job.job_id).text)
    client.webhooks.remove(added.id)
    server.shutdown()
