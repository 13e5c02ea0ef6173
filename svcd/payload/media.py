"""Compare the real size of reference pictures with the declared size, which determines the order's price.

Only headers are read, so a decompression bomb has no effect. Declared sizes of video and audio are trusted.
"""

from collections.abc import Mapping

from common.pricing.assets import Asset, read_assets
from common.refusal import Refused
from svcd.base.end_reasons import WorkFailed
from svcd.payload.picture_size import UnknownSize, measure_picture


def check_media(model_input: Mapping[str, object]) -> None:
    """Raise `WorkFailed` (`media_input_refused`) for an asset that is malformed, over a limit or larger than declared.

    Call this in a thread, because it decodes megabytes of base64.
    """
    try:
        assets = read_assets(model_input)
    except Refused as refusal:
        raise WorkFailed("media_input_refused", str(refusal)) from None
    for asset in assets:
        if asset.kind == "still":
            _check_picture(asset)


def _check_picture(asset: Asset) -> None:
    try:
        picture = measure_picture(asset.content)
    except UnknownSize as unknown:
        raise WorkFailed("media_input_refused", f"{asset.param} is not a picture of known size: {unknown}") from None
    if picture.has_several_frames:
        raise WorkFailed("media_input_refused", f"{asset.param} has several frames, but the order pays for a still")

    # Compare areas, because metadata may rotate a picture by 90°, and clients declare the size of the rotated picture.
    if picture.width * picture.height > asset.pixels:
        really, declared = f"{picture.width}×{picture.height}", f"{asset.width}×{asset.height}"
        raise WorkFailed("media_input_refused", f"{asset.param} is {really}, but was declared as {declared}")
