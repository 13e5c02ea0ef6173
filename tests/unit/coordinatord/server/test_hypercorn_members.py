"""Private members of hypercorn and h11 that the server overrides or calls: another version must have them, too."""

import inspect

import h11
import pytest
from h11._receivebuffer import ReceiveBuffer
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from coordinatord.http.server.http11 import Http11, StrictLines

OVERRIDDEN = {
    (Http11, H11Protocol): {"stream_send", "_check_protocol", "_create_stream", "_send_error_response"},
    (StrictLines, ReceiveBuffer): {"maybe_extract_lines"},
}
HANDED_ON = ("app", "config", "context", "task_group", "ssl", "client", "server")


def own_methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and name != "__init__"}


@pytest.mark.parametrize(("ours", "theirs"), OVERRIDDEN, ids=lambda kind: kind.__name__)
def test_methods_that_are_overridden_exist_with_the_same_parameters(ours: type, theirs: type) -> None:
    named = OVERRIDDEN[ours, theirs]
    assert own_methods(ours) & own_methods(theirs) == named
    for name in named:
        assert [*inspect.signature(getattr(ours, name)).parameters] == [
            *inspect.signature(getattr(theirs, name)).parameters
        ]


@pytest.mark.parametrize(
    ("caller", "called"),
    [("_handle_events", "_check_protocol"), ("_handle_events", "_create_stream"), ("handle", "_handle_events")],
)
def test_methods_that_are_overridden_are_called(caller: str, called: str) -> None:
    assert f"self.{called}(" in inspect.getsource(getattr(H11Protocol, caller))


def test_error_responses_go_through_the_method_that_is_overridden() -> None:
    assert "self._send_error_response(error.error_status_hint)" in inspect.getsource(H11Protocol._handle_events)


def test_stream_takes_what_the_protocol_holds() -> None:
    assert [*inspect.signature(HTTPStream).parameters] == [*HANDED_ON, "send", "stream_id"]
    source = inspect.getsource(H11Protocol.__init__)
    for name in (*HANDED_ON, "connection", "connection_state", "keep_alive_requests", "stream", "send"):
        assert f"self.{name}" in source


def test_lines_stand_in_the_buffer_of_the_connection() -> None:
    assert isinstance(h11.Connection(h11.SERVER)._receive_buffer, ReceiveBuffer)
    assert {"_data", "_multiple_lines_search"} <= vars(ReceiveBuffer()).keys()
    assert [*inspect.signature(ReceiveBuffer._extract).parameters] == ["self", "count"]
