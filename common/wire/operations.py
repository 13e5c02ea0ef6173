"""Shapes of the answers to what providers sign: ops, simulated claims, published asks."""

from typing import Literal

from common.wire.shapes import Bytes32, Digits, HexBytes, Omittable, Shape


class OpDoneShape(Shape, frozen=True):
    tx_hash: Bytes32
    status: Literal["success"]
    block_number: Digits
    result_cid: Omittable[str] = None


class OpRefused(Shape, frozen=True):
    """`reason` is the contract error's name; `unknown` comes with the revert data in `raw`."""

    ok: Literal[False]
    reason: str
    raw: Omittable[HexBytes] = None


class ClaimAccepted(Shape, frozen=True):
    ok: Literal[True]


class ClaimRefused(Shape, frozen=True):
    ok: Literal[False]
    reason: str


class PublishedShape(Shape, frozen=True):
    provider_id: Digits
    signed_at: Digits
    published: Literal[True]
    tx_hash: Bytes32
