"""Shapes and limits of the tab mailbox, which relays frames between a client and its provider."""

from typing import Annotated, Final, Literal

from common.api.limits import KIB, MIB
from common.api.shapes import Bytes32, Shape, described

MAX_TAB_FRAME_BYTES: Final = 64 * KIB + 16  # at least `common.tab.channel.MAX_FRAME_BYTES`
MAX_TAB_FRAMES_PER_POST: Final = 256
MAX_TAB_POST_BYTES: Final = 4 * MIB
MAX_TAB_WAITING_BYTES: Final = 4 * MIB  # for each tab and direction
MAX_TAB_WAITING_FRAMES: Final = 1024
TAB_FRAME_LIFETIME_S: Final = 60  # an unread frame is dropped after this time
TAB_GROUPING_WINDOW_S: Final = 0.05  # the tokens of an answer are collected for this time and sent together

TabRefusalCode = Literal["unknown_job", "not_claimed", "not_party", "mailbox_full"]


class TabRefusal(Shape, frozen=True):
    """Tab whose frames were rejected. The mailbox delivers none of the post's frames for this tab."""

    job_id: Bytes32
    code: Annotated[
        TabRefusalCode,
        described(
            "`unknown_job`; `not_claimed`: the job is not claimed, or has ended; `not_party`: the session is neither"
            " the owner's nor the provider's; `mailbox_full`: too many frames wait for the other side, so send fewer",
            "mailbox_full",
        ),
    ]


class TabPost(Shape, frozen=True):
    """Outcome of a post. Frames of tabs that are not listed were accepted."""

    refused: Annotated[list[TabRefusal], described("tabs whose frames were not accepted", [])]
