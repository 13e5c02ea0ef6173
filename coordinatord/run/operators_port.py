"""The operators' port: /metrics and the page that shows them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from prometheus_client import REGISTRY, generate_latest

from common.daemon.metrics_server import PageAnswer, PageServer, open_pages
from coordinatord.api.pages.files import operators_page


def open_metrics(host: str, port: int, refresh: Callable[[], None]) -> AbstractAsyncContextManager[PageServer]:
    """Bind the operators' port, which serves /metrics and a page of it. Fatal when it is taken.

    `refresh` sets the gauges that are only computed when a request reads them.
    """
    files = operators_page()

    def page(method: bytes, path: bytes) -> PageAnswer:
        if method not in (b"GET", b"HEAD"):
            return PageAnswer(b"405 Method Not Allowed", b"only GET\n")
        if path == b"/metrics":
            refresh()
            return PageAnswer(b"200 OK", generate_latest(REGISTRY))
        file = files.get(path.decode("latin-1"))
        if file is None:
            return PageAnswer(b"404 Not Found", b"only GET / and /metrics\n")
        return PageAnswer(b"200 OK", file.body, file.headers)

    return open_pages(host, port, page, "METRICS_HOST, METRICS_PORT")
