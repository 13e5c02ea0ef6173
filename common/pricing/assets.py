"""Read the reference assets that an image or video request declares.

The keys of the input, and the kind of asset under each:

    image, end_image                    a still
    video                               a clip
    reference_images, reference_videos, reference_audios     a list of stills, clips or audios

An asset is an object with `b64` and `media_type`; stills and clips declare `width` and `height`, clips also
`duration_secs`. Prices depend on the declared values. The provider checks them against the content.
"""

from collections.abc import Iterator
from typing import Final, Literal

import attrs

from common.pricing.model_input import Input, read_count
from common.refusal import Refused
from common.scalars import read_base64

AssetKind = Literal["still", "clip", "audio"]

MAX_ASSETS_PER_REQUEST: Final = 12  # stills and clips under all keys; audios do not count
MAX_ASSET_PIXELS: Final = 8_294_400  # a 4k frame
MAX_CLIP_DURATION_S: Final = 60
MAX_AUDIO_BYTES: Final = 15 * 2**20

# The order matters: with the aspect ratio `auto`, the first still or clip sets the ratio.
_SINGLE_ASSETS: Final[tuple[tuple[str, AssetKind], ...]] = (
    ("image", "still"),
    ("end_image", "still"),
    ("video", "clip"),
)
_ASSET_LISTS: Final[tuple[tuple[str, AssetKind, int], ...]] = (
    ("reference_images", "still", 9),
    ("reference_videos", "clip", 3),
    ("reference_audios", "audio", 3),
)


@attrs.frozen(slots=True)
class Asset:
    """Asset with the values that the request declares. `param` is its path in the input, e.g. `reference_images[2]`.

    `seconds` is 1 for a still. An audio has no pixels and costs no units.
    """

    param: str
    kind: AssetKind
    media_type: str
    content: bytes = attrs.field(repr=False)
    width: int = 0
    height: int = 0
    seconds: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def units(self) -> int:
        return self.pixels * max(1, self.seconds)


def read_assets(model_input: Input) -> tuple[Asset, ...]:
    """Read all assets of an input. Refuse a malformed or oversized asset, with its path in the error."""
    assets = tuple(_iterate_assets(model_input))
    if sum(asset.kind != "audio" for asset in assets) > MAX_ASSETS_PER_REQUEST:
        raise Refused(f"a request must have at most {MAX_ASSETS_PER_REQUEST} stills and clips", assets[0].param)
    return assets


def _iterate_assets(model_input: Input) -> Iterator[Asset]:
    for name, kind in _SINGLE_ASSETS:
        value = model_input.get(name)
        if value is not None:
            yield _read_asset(value, name, kind)
    for name, kind, max_count in _ASSET_LISTS:
        values = model_input.get(name)
        if values is None:
            continue
        if not isinstance(values, list | tuple):
            raise Refused(f"{name} must be a list of asset objects", name)
        if len(values) > max_count:
            raise Refused(f"{name} must have at most {max_count} assets", name)
        for index, value in enumerate(values):
            yield _read_asset(value, f"{name}[{index}]", kind)


def _read_asset(value: object, param: str, kind: AssetKind) -> Asset:
    if not isinstance(value, dict):
        raise Refused(f"{param} must be an asset object with b64 and media_type", param)
    media_type = value.get("media_type")
    if not isinstance(media_type, str) or not media_type:
        raise Refused(f"{param}.media_type is required", f"{param}.media_type")
    content = _read_content(value.get("b64"), f"{param}.b64", kind)
    if kind == "audio":
        return Asset(param, kind, media_type, content)
    width = read_count(value.get("width"), f"{param}.width", minimum=1)
    height = read_count(value.get("height"), f"{param}.height", minimum=1)
    if width * height > MAX_ASSET_PIXELS:
        raise Refused(f"{param}: width times height must be at most {MAX_ASSET_PIXELS} pixels", param)
    seconds = _read_seconds(value.get("duration_secs"), f"{param}.duration_secs") if kind == "clip" else 1
    return Asset(param, kind, media_type, content, width, height, seconds)


def _read_content(b64: object, param: str, kind: AssetKind) -> bytes:
    if not isinstance(b64, str) or not b64:
        raise Refused(f"{param} is required", param)
    return read_base64(b64, MAX_AUDIO_BYTES if kind == "audio" else len(b64), param)


def _read_seconds(value: object, param: str) -> int:
    seconds = read_count(value, param, minimum=1)
    if seconds > MAX_CLIP_DURATION_S:
        raise Refused(f"{param} must be at most {MAX_CLIP_DURATION_S}", param)
    return seconds
