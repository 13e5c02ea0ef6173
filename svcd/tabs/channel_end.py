"""Provider's end of a tab's channel. It does no I/O: the caller passes frames and times.

A hello opens a candidate channel. The candidate replaces the current channel when the candidate's first message
arrives, so a replayed hello does not end the current channel. A channel accepts frames only from the route of its
hello, so a coordinator cannot end a direct channel.
"""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs

from common.box import PublicKey, SecretKey
from common.refusal import Refused
from common.tab.channel import DATA, HELLO, Channel, ChannelBinding, Frame, accept_hello, lost_frame

Route: TypeAlias = Literal["mailbox", "direct"]

_HELLO_BURST: Final = 5.0  # handshakes at once on a route; each costs four operations on the curve
_HELLOS_PER_SECOND: Final = 1.0
_MIN_LOST_INTERVAL_S: Final = 1.0


@attrs.frozen(slots=True)
class RoutedChannel:
    """Channel, and the route that its frames use."""

    route: Route
    channel: Channel


@attrs.frozen(slots=True)
class Received:
    """Outcome of a received frame.

    `reply` is a frame to send back on the same route. `message` is the message that the frame completed. `opened` is
    True for the first message of a new channel.
    """

    reply: bytes | None = None
    message: bytes | None = None
    opened: bool = False


_NOTHING_RECEIVED: Final = Received()


@attrs.define(slots=True)
class _HelloBucket:
    tokens: float = _HELLO_BURST
    at: float = float("-inf")

    def take(self, now: float) -> bool:
        self.tokens = min(_HELLO_BURST, self.tokens + max(0.0, now - self.at) * _HELLOS_PER_SECOND)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@attrs.define(slots=True, eq=False)
class ChannelEnd:
    """Provider's end of the channels of one tab. `welcome` makes the payload of the next welcome."""

    place: ChannelBinding
    box: SecretKey
    channel_key: PublicKey
    welcome: Callable[[], bytes]
    current: RoutedChannel | None = None
    _candidate: RoutedChannel | None = None
    _hellos: dict[Route, _HelloBucket] = attrs.field(factory=dict)
    _lost_at: float = float("-inf")

    @property
    def newest(self) -> RoutedChannel | None:
        """Return the current channel, or otherwise the candidate of an owner that has not sent a message yet."""
        return self.current or self._candidate

    def receive(self, route: Route, raw: bytes, now: float) -> Received:
        try:
            frame = Frame.parse(raw)
        except Refused:
            return _NOTHING_RECEIVED
        if frame.kind == HELLO:
            return self._receive_hello(route, frame, now)
        return self._receive_data(route, frame, now) if frame.kind == DATA else _NOTHING_RECEIVED

    def _receive_hello(self, route: Route, frame: Frame, now: float) -> Received:
        if not self._hellos.setdefault(route, _HelloBucket()).take(now):
            return _NOTHING_RECEIVED
        try:
            channel, welcome = accept_hello(self.place, self.box, self.channel_key, frame, self.welcome())
        except Refused:
            return _NOTHING_RECEIVED
        self._candidate = RoutedChannel(route, channel)
        return Received(welcome)

    def _receive_data(self, route: Route, frame: Frame, now: float) -> Received:
        for line in (self._candidate, self.current):
            if line is not None and (line.route, line.channel.id) == (route, frame.channel_id):
                return self._open_frame(line, frame, now)
        return self._report_lost(frame, now)

    def _open_frame(self, line: RoutedChannel, frame: Frame, now: float) -> Received:
        try:
            message = line.channel.open(frame)
        except Refused:
            if line is self._candidate:
                self._candidate = None
            else:
                self.current = None
            return self._report_lost(frame, now)
        is_new = line is self._candidate
        if is_new:
            self.current, self._candidate = line, None
        return Received(message=message, opened=is_new)

    def _report_lost(self, frame: Frame, now: float) -> Received:
        if now - self._lost_at < _MIN_LOST_INTERVAL_S:
            return _NOTHING_RECEIVED
        self._lost_at = now
        return Received(lost_frame(frame.channel_id))
