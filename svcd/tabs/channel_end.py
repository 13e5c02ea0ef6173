"""Provider's end of a tab's channel, without I/O. The caller passes frames and times.

The owner's `hello` frame opens a candidate channel. The candidate replaces the current channel when the candidate's
first message arrives, so a replayed hello does not end the current channel. A channel accepts frames only from the
route of its hello, so a coordinator cannot end a direct channel.
"""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs

from common.box import PublicKey, SecretKey
from common.refusal import Refused
from common.tab.channel import DATA, HELLO, Channel, ChannelBinding, Frame, accept_hello, lost_frame

Route: TypeAlias = Literal["mailbox", "direct"]

_HELLO_BURST: Final = 5.0  # number of hellos at once on a route; each costs four operations on the curve
_HELLOS_PER_SECOND: Final = 1.0
_MIN_LOST_INTERVAL_S: Final = 1.0


@attrs.frozen(slots=True)
class RoutedChannel:
    """Channel, and the route that its frames use."""

    route: Route
    channel: Channel


@attrs.frozen(slots=True)
class FrameOutcome:
    """Outcome of a received frame.

    `reply` is a frame to send back on the same route. `message` is the message that the frame completed. `is_first` is
    True for the first message of a new channel.
    """

    reply: bytes | None = None
    message: bytes | None = None
    is_first: bool = False


_FRAME_IGNORED: Final = FrameOutcome()


@attrs.define(slots=True)
class _HelloBucket:
    available_hellos: float = _HELLO_BURST
    updated_at: float = float("-inf")

    def take(self, now: float) -> bool:
        self.available_hellos = min(
            _HELLO_BURST, self.available_hellos + max(0.0, now - self.updated_at) * _HELLOS_PER_SECOND
        )
        self.updated_at = now
        if self.available_hellos < 1:
            return False
        self.available_hellos -= 1
        return True


@attrs.define(slots=True, eq=False)
class ChannelEnd:
    """Provider's end of the channels of one tab. `build_welcome` returns the payload of the reply to a `hello`."""

    binding: ChannelBinding
    box_secret: SecretKey
    channel_key: PublicKey
    build_welcome: Callable[[], bytes]
    current_channel: RoutedChannel | None = None
    _candidate: RoutedChannel | None = None
    _hellos: dict[Route, _HelloBucket] = attrs.field(factory=dict)
    _lost_sent_at: float = float("-inf")

    @property
    def newest_channel(self) -> RoutedChannel | None:
        """Return the current channel, or otherwise the candidate on which no message has arrived yet."""
        return self.current_channel or self._candidate

    def receive(self, route: Route, raw: bytes, now: float) -> FrameOutcome:
        try:
            frame = Frame.parse(raw)
        except Refused:
            return _FRAME_IGNORED
        if frame.kind == HELLO:
            return self._receive_hello(route, frame, now)
        return self._receive_data(route, frame, now) if frame.kind == DATA else _FRAME_IGNORED

    def _receive_hello(self, route: Route, frame: Frame, now: float) -> FrameOutcome:
        if not self._hellos.setdefault(route, _HelloBucket()).take(now):
            return _FRAME_IGNORED
        try:
            channel, welcome = accept_hello(
                self.binding, self.box_secret, self.channel_key, frame, self.build_welcome()
            )
        except Refused:
            return _FRAME_IGNORED
        self._candidate = RoutedChannel(route, channel)
        return FrameOutcome(welcome)

    def _receive_data(self, route: Route, frame: Frame, now: float) -> FrameOutcome:
        for routed in (self._candidate, self.current_channel):
            if routed is not None and (routed.route, routed.channel.id) == (route, frame.channel_id):
                return self._open_frame(routed, frame, now)
        return self._report_lost(frame, now)

    def _open_frame(self, routed: RoutedChannel, frame: Frame, now: float) -> FrameOutcome:
        try:
            message = routed.channel.open(frame)
        except Refused:
            if routed is self._candidate:
                self._candidate = None
            else:
                self.current_channel = None
            return self._report_lost(frame, now)
        is_new = routed is self._candidate
        if is_new:
            self.current_channel, self._candidate = routed, None
        return FrameOutcome(message=message, is_first=is_new)

    def _report_lost(self, frame: Frame, now: float) -> FrameOutcome:
        if now - self._lost_sent_at < _MIN_LOST_INTERVAL_S:
            return _FRAME_IGNORED
        self._lost_sent_at = now
        return FrameOutcome(lost_frame(frame.channel_id))
