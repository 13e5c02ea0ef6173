"""The socket that this process takes connections from."""

import socket

from coordinatord.trouble import Fatal


def listening_socket(port: int, host: str = "0.0.0.0") -> socket.socket:  # noqa: S104 - the specification says so
    """Bound, so that a port that is taken (Fatal) is known before anything else starts. Several processes may share it
    (SO_REUSEPORT); the kernel shares connections out among them."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except OSError as trouble:
        listening.close()
        raise Fatal(f"PORT: {port}: {trouble.strerror}") from None
    return listening
