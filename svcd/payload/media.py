"""Compare the real size of reference pictures with the declared size, which the order pays for.

Only headers are read and pictures are never decoded, so a decompression bomb has no effect. Declared sizes of video and
audio are trusted.
"""

from collections.abc import Mapping

from common.pricing.assets import Asset, read_assets
from common.refusal import Refused
from svcd.base.end_reasons import WorkFailed
from svcd.payload.picture_size import UnknownSize, measure


def check_media(model_input: Mapping[str, object]) -> None:
    """Raise `WorkFailed` (`media_input_refused`) for an asset that is malformed, over a limit or larger than declared.

    Decodes megabytes of base64, so run this in a thread.
    """
    try:
        assets = read_assets(model_input)
    except Refused as refusal:
        raise WorkFailed("media_input_refused", str(refusal)) from None
    for asset in assets:
        if asset.kind == "still":
            _check(asset)


def _check(asset: Asset) -> None:
    try:
        picture = measure(asset.content)
    except UnknownSize as unknown:
        raise WorkFailed("media_input_refused", f"{asset.param} is not a picture of known size: {unknown}") from None
    if picture.several:
        raise WorkFailed("media_input_refused", f"{asset.param} has several frames, but the order pays for a still")
    # By area: a picture that its metadata turns by 90° is declared as it is shown and measured as it is stored.
    if picture.width * picture.height > asset.pixels:
        really, declared = f"{picture.width}×{picture.height}", f"{asset.width}×{asset.height}"
        raise WorkFailed("media_input_refused", f"{asset.param} is {really} and was declared as {declared}")
