"""A job that was signed here, held against the one that the chain has."""

from typing import Final

from common.scalars import hex_of
from svc.chain import facts
from svc.chain.node import Chain
from svc.core.orders import SealedOrder
from svc.errors import ChainContradicts

_BACK: Final = 300  # blocks: a post is looked for from so many before the head on


async def is_posted(chain: Chain, sealed: SealedOrder) -> bool:
    """True once the chain shows the job. Raises ChainContradicts where it shows another under its id."""
    registry, name = sealed.market.job_registry, hex_of(sealed.job_id)
    first = max(0, await chain.head() - _BACK)
    posted = await facts.posted_job(chain, registry, sealed.job_id, first)
    if posted is None:
        return False
    if posted.owner != sealed.owner:
        raise ChainContradicts(f"owner of job {name}", hex_of(sealed.owner), hex_of(posted.owner))
    if posted.order != sealed.order:
        raise ChainContradicts(f"order of job {name}", sealed.order, posted.order)
    return True
