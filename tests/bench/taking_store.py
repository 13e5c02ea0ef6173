"""A store that accepts everything and keeps nothing: `python -m tests.bench.taking_store port`.

It supports the part of S3 that uploads need, and reads bodies as cheaply as possible.
"""

import socket
import sys
import threading
from typing import Final

_CID: Final = b"bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi"
_BUFFER: Final = 1 << 20


def main() -> None:
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
        print("listening", flush=True)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(_BUFFER))
    with connection:
        while head := _head(connection):
            method, target = head.split(b" ", 2)[:2]
            left = _content_length(head)
            body = head.partition(b"\r\n\r\n")[2]
            left -= len(body)
            while left > 0:
                left -= connection.recv_into(buffer, min(left, _BUFFER))
            xml = b"<UploadId>1</UploadId>" if method == b"POST" and target.endswith(b"uploads=") else b""
            answer = b'HTTP/1.1 200 OK\r\netag: "1"\r\nx-amz-meta-cid: %s\r\ncontent-length: %d\r\n\r\n%s'
            connection.sendall(answer % (_CID, len(xml), xml))


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        received = connection.recv(1 << 16)
        if not received:
            return b""
        head += received
    return head


def _content_length(head: bytes) -> int:
    after = head.lower().partition(b"content-length:")[2]
    return int(after.partition(b"\r\n")[0] or b"0")


if __name__ == "__main__":
    main()
