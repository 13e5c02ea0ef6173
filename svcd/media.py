"""Reference assets as they really are, held against what was declared (and paid) for them.

Only headers are read: a picture is never decoded here, so that a small file that unfolds to gigabytes costs nothing.
Clips and audios are taken at their declared sizes, which the order pays for; their limits are checked with them.
"""

from collections.abc import Mapping
from io import BytesIO
from typing import Final

from PIL import Image

from common.pricing.assets import Asset, read_assets
from common.refusal import Refused
from svcd.failures import JobFailed

# Formats that models take. Pillow knows dozens more, whose parsers need not be offered to strangers.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
_MAY_MOVE: Final = frozenset({"GIF", "WEBP", "PNG", "TIFF", "AVIF"})  # the further pictures of a JPEG are previews


def check_media(model_input: Mapping[str, object]) -> None:
    """`JobFailed` (`media_input_refused`) for the first asset that is malformed, over a limit, or more than declared.

    It decodes base64 of megabytes: run it in a thread.
    """
    try:
        assets = read_assets(model_input)
    except Refused as refusal:
        raise JobFailed("media_input_refused", str(refusal)) from None
    for asset in assets:
        if asset.kind == "still":
            _measure(asset)


def _measure(asset: Asset) -> None:
    try:
        with Image.open(BytesIO(asset.content), formats=_FORMATS) as picture:
            width, height = picture.size
            moves = picture.format in _MAY_MOVE and bool(getattr(picture, "is_animated", False))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise JobFailed("media_input_refused", f"{asset.param} has far more pixels than any asset may have") from None
    # Whatever a parser trips over (IndexError, struct.error and RuntimeError among it) is a stranger's doing: taken for
    # a fault of ours, the job would be left to be reclaimed, and anybody could cost a provider its reputation.
    except Exception:
        raise JobFailed("media_input_refused", f"{asset.param} is no picture of a known format") from None
    if moves:
        raise JobFailed("media_input_refused", f"{asset.param} holds several frames; a still is paid for")
    # By area: a picture that its metadata turns by 90° is declared as it is shown and measured as it is stored.
    if width * height > asset.pixels:
        declared = f"{asset.width}×{asset.height}"
        raise JobFailed("media_input_refused", f"{asset.param} is {width}×{height} and was declared as {declared}")
