"""Compute the size and cost of bundles. A bundle is a job with several consecutive lines of a batch. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from common.bundle import BUNDLED_MODALITIES, MAX_ITEMS, convert_to_output_units
from common.pricing.units import BYTES_PER_UNIT, MAX_UNITS
from common.quotes import CostParts
from common.refusal import Refused
from svc.core.batch_lines import MAX_LINES
from svc.core.bids import Rates
from svc.core.order_request import PricedRequest
from svc.records import Ask

MAX_BUNDLE_INPUT_BYTES: Final = 4 * 2**20
MAX_UNMEASURED_BUNDLE_ITEMS: Final = 64  # maximum lines in a bundle if the provider's speed is unknown
_BUNDLES_PER_WINDOW: Final = 2  # a bundle may take at most half of its window, at the provider's measured speed

LINES_METADATA_KEY: Final = "svc-lines"  # metadata of a batch: the number of lines of each job
_MAX_METADATA_VALUE_LENGTH: Final = 512
# For example, 256*2 means two jobs of 256 lines.
_RUN_PATTERN: Final = re.compile(r"([1-9][0-9]{0,4})(?:\*([1-9][0-9]{0,4}))?", re.ASCII)


@attrs.frozen(slots=True)
class BundleLimits:
    """Limits of one job for a provider. `max_units` is None if the provider's speed is unknown."""

    max_items: int = 1
    max_units: int | None = None


UNBUNDLED_LIMITS: Final = BundleLimits()


def bundle_limits_for(ask: Ask, max_items: int | None) -> BundleLimits:
    """Return the bundle limits of an ask's provider. `max_items`, if not None, lowers the limit of lines."""
    items = max(1, min(ask.largest_bundle or 1, MAX_ITEMS, max_items or MAX_ITEMS))
    speed = None if ask.reliability is None else ask.reliability.units_per_sec
    if speed is None or speed <= 0:
        return BundleLimits(min(items, MAX_UNMEASURED_BUNDLE_ITEMS))
    return BundleLimits(items, speed * ask.sla // _BUNDLES_PER_WINDOW)


def may_bundle(line: PricedRequest, rates: Rates) -> bool:
    """Return True if a line may be in a bundle.

    A bundle charges input as units of output, so a text line with an input rate also needs an output rate.
    """
    if line.modality not in BUNDLED_MODALITIES:
        return False
    return bool(rates.rate_out) or not rates.rate_in or line.modality == "embeddings"


def bundle_rates(rates: Rates) -> Rates:
    """Return the rates to sign for a bundle. Embeddings have no output rate, so the input rate is used for both."""
    return rates if rates.rate_out else Rates(rates.rate_in, rates.rate_in)


def count_lines_for_job(lines: Sequence[PricedRequest], start: int, rates: Rates, limits: BundleLimits) -> int:
    """Return the number of lines, counted from `start`, that may share one job. The number is at least 1."""
    first, signed = lines[start], bundle_rates(rates)
    if limits.max_items == 1 or not may_bundle(first, rates):
        return 1
    max_units = MAX_UNITS if limits.max_units is None else min(limits.max_units, MAX_UNITS)
    end = min(start + limits.max_items, len(lines))
    units_in = units_out = 0
    for at in range(start, end):
        line = lines[at]
        if line.model.id != first.model.id or line.rates != first.rates or not may_bundle(line, rates):
            return at - start
        units_in, units_out = units_in + line.units.units_in, units_out + line.units.units_out
        units = convert_to_output_units(units_in, units_out, signed.rate_in, signed.rate_out)
        if at > start and (units > max_units or units_in * BYTES_PER_UNIT > MAX_BUNDLE_INPUT_BYTES):
            return at - start
    return end - start


def sizes_metadata(sizes: Sequence[int], max_pairs: int) -> dict[str, str]:
    """Return the metadata that records how many lines each job has, or an empty dict for a batch without bundles.

    >>> sizes_metadata([256, 256, 16], 16)
    {'svc-lines': '256*2 16'}
    >>> sizes_metadata([1, 1], 16)
    {}
    """
    if all(size == 1 for size in sizes):
        return {}
    values = [""]
    for size, group in groupby(sizes):
        run = _format_run(size, sum(1 for _ in group))
        if len(values[-1]) + 1 + len(run) > _MAX_METADATA_VALUE_LENGTH:
            values.append("")
        values[-1] = f"{values[-1]} {run}".lstrip()
    if len(values) > max_pairs:
        raise Refused(
            "the bundles have too many different sizes for the batch's metadata: split the file, or use bundle=1",
            "bundle",
        )
    return {_sizes_key(number): value for number, value in enumerate(values)}


def read_job_sizes(metadata: Mapping[str, str] | None) -> tuple[int, ...] | None:
    """Return the number of lines of each job, or None for a batch without bundles.

    Raises Refused for malformed metadata.

    >>> read_job_sizes({"svc-lines": "256*2 16"})
    (256, 256, 16)
    """
    if metadata is None or LINES_METADATA_KEY not in metadata:
        return None
    sizes: list[int] = []
    lines = 0
    for value in _sizes_values(metadata):
        for run in value.split(" "):
            found = _RUN_PATTERN.fullmatch(run)
            size, times = (int(found[1]), int(found[2] or 1)) if found is not None else (0, 0)
            lines += size * times
            if found is None or lines > MAX_LINES:
                raise Refused(
                    f"{LINES_METADATA_KEY} in the batch's metadata must be sizes of jobs such as 256*2 16",
                    LINES_METADATA_KEY,
                )
            sizes += [size] * times
    return tuple(sizes)


def line_count(metadata: Mapping[str, str] | None, job_count: int) -> int:
    """Return the number of lines of a batch. If its metadata has no valid sizes, each job counts as one line."""
    try:
        sizes = read_job_sizes(metadata)
    except Refused:
        sizes = None
    return job_count if sizes is None else sum(sizes)


def _format_run(size: int, times: int) -> str:
    return str(size) if times == 1 else f"{size}*{times}"


def _sizes_key(number: int) -> str:
    return LINES_METADATA_KEY if number == 0 else f"{LINES_METADATA_KEY}-{number + 1}"


def _sizes_values(metadata: Mapping[str, str]) -> Iterator[str]:
    number = 0
    while (value := metadata.get(_sizes_key(number))) is not None:
        yield value
        number += 1


def split_cost(cost: CostParts, weights: Sequence[int]) -> list[CostParts]:
    """Split a job's cost by weight. The parts add up to the cost. If all weights are 0, the parts are equal.

    >>> split_cost(CostParts(provider=10, fee=1, gas_fee=3), [2, 1])
    [CostParts(provider=6, fee=0, gas_fee=2), CostParts(provider=4, fee=1, gas_fee=1)]
    """
    if not any(weights):
        weights = [1] * len(weights)
    shares = [_split_amount(amount, weights) for amount in (cost.provider, cost.fee, cost.gas_fee)]
    return [CostParts(*each) for each in zip(*shares, strict=True)]


def _split_amount(amount: int, weights: Sequence[int]) -> list[int]:
    """Split the amount by weight. Round the running total, not each share, so that the shares add up to the amount."""
    shares, total_weight, assigned, weight_so_far = [], sum(weights), 0, 0
    for weight in weights:
        weight_so_far += weight
        running_total = amount * weight_so_far // total_weight
        shares.append(running_total - assigned)
        assigned = running_total
    return shares
