"""Mailbox, direct endpoint and limits that the tabs of a daemon share."""

from collections.abc import Callable
from functools import partial

import attrs
import trio

from common.address_book import AddressBook
from common.box import SecretKey
from common.domains import Domains
from common.tab.channel import ChannelBinding
from common.tab.messages import DirectEndpoint
from common.tab.terms import TabTerms
from svcd.journal.slots import Slots
from svcd.tabs.certificate import PublishedEndpoint
from svcd.tabs.channel_end import ChannelEnd, Route
from svcd.tabs.mailbox import FrameRoutes, Mailbox
from svcd.tabs.open_tabs import OpenTab, OpenTabs


@attrs.frozen(slots=True, eq=False)
class TabService:
    """Parts that the tabs of a daemon share."""

    box_secret: SecretKey
    address_book: AddressBook
    domains: Domains
    mailbox: Mailbox
    tabs: OpenTabs
    endpoint: PublishedEndpoint | None = None

    @classmethod
    def create(
        cls,
        box: SecretKey,
        deployment: AddressBook,
        routes: FrameRoutes,
        slots: Slots,
        endpoint: PublishedEndpoint | None = None,
    ) -> "TabService":
        return cls(box, deployment, Domains.of(deployment), Mailbox(routes), OpenTabs(slots), endpoint)

    def build_channel_end(self, tab: OpenTab, terms: TabTerms, build_welcome: Callable[[], bytes]) -> ChannelEnd:
        book = self.address_book
        binding = ChannelBinding(book.chain_id, book.job_registry, tab.job_id)
        return ChannelEnd(binding, self.box_secret, terms.channel_key, build_welcome)

    def endpoint_of(self, tab: OpenTab) -> DirectEndpoint | None:
        """Return the direct endpoint for the owner of a tab."""
        endpoint = self.endpoint
        return None if endpoint is None else DirectEndpoint(endpoint.url, endpoint.certificate, tab.token)

    def start_mailbox_reader(self, nursery: trio.Nursery, tab: OpenTab) -> None:
        nursery.start_soon(self.mailbox.read, tab.job_id, partial(tab.deliver, "mailbox"))

    async def send(self, tab: OpenTab, route: Route, frames: list[bytes]) -> None:
        """Send the frames, and return when the route has accepted them."""
        if route == "direct":
            await tab.outbox.send(frames)
        else:
            await self.mailbox.send(tab.job_id, frames)
