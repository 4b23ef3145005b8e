"""What `info.json` and the data files of an exported folder say of its features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.formats.lerobot.layout import BOOKKEEPING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.formats.lerobot.planning import ExportedFeature, ExportPlan

_AXES = ["height", "width", "channels"]
_OF_FILES = ("codec", "height", "width", "pix_fmt", "fps", "channels", "is_depth_map")  # of `info`, behind `video.`


def described(plan: ExportPlan, receipts: Sequence[Mapping[str, Any]], /) -> dict[str, Any]:
    """`features` of `info.json`.

    Args:
        plan: What became of the columns.
        receipts: Of the parts: they know the sizes of pictures.
    """
    by_name = {feature.name: feature for feature in plan.features}
    features = {}
    for name in plan.order:
        if name in by_name:
            features[name] = _feature(by_name[name], plan, receipts)
        else:
            before = plan.source.get("features", {}).get(name, {})
            features[name] = {"dtype": BOOKKEEPING[name], "shape": [1], "names": before.get("names")}
    return features


def _feature(feature: ExportedFeature, plan: ExportPlan, receipts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    film = next((one for receipt in receipts for one in receipt["films"].get(feature.name, ())), None)
    if film is not None:
        return _filmed(feature, plan, film)
    if feature.role == "image":
        shape = next((r["shapes"][feature.name] for r in receipts if feature.name in r["shapes"]), [0, 0, 3])
        return _with_info(feature, {"dtype": "image", **_shaped(feature, shape)})
    names = feature.declared.get("names")
    if feature.role == "numbers":
        same = list(feature.declared.get("shape", ())) == list(feature.shape)
        names = names if same and names is not None else feature.names
    return _with_info(feature, {"dtype": feature.dtype, "shape": list(feature.shape), "names": names})


def _shaped(feature: ExportedFeature, size: Sequence[int]) -> dict[str, Any]:
    """Shape and names of pictures [H, W, C], in the order of axes that they had."""
    shape, names = list(feature.declared.get("shape", ())), feature.declared.get("names")
    height, width, channels = size
    if shape == [channels, height, width] and shape != list(size):
        return {"shape": shape, "names": names}
    return {"shape": list(size), "names": names if shape == list(size) and names is not None else _AXES}


def _filmed(feature: ExportedFeature, plan: ExportPlan, film: Mapping[str, Any]) -> dict[str, Any]:
    rate = int(plan.rate) if plan.rate.denominator == 1 else float(plan.rate)
    depth = bool(feature.info.get("is_depth_map", feature.info.get("video.is_depth_map", False)))
    channels = 1 if depth or film["pix_fmt"].startswith("gray") else 3
    info = {
        "video.height": film["height"],
        "video.width": film["width"],
        "video.codec": film["codec"],
        "video.pix_fmt": film["pix_fmt"],
        "video.is_depth_map": depth,
        "video.fps": rate,
        "video.channels": channels,
        "has_audio": False,
    }
    shaped = _shaped(feature, (film["height"], film["width"], channels))
    declared = feature.declared.get("info", feature.declared.get("video_info"))
    before = declared if isinstance(declared, dict) else {}
    of_column = {key: value for key, value in feature.info.items() if key not in {"resolution", "pixel_format"}}
    same = before.get("video.codec") == film["codec"]  # else what it says of the encoder is of another
    kept = {key: value for key, value in (before if same else {}).items() if key not in info}
    return {"dtype": "video", **shaped, "info": {**kept, **of_column, **info}}


def _with_info(feature: ExportedFeature, said: dict[str, Any]) -> dict[str, Any]:
    before = feature.declared.get("info")
    of_column = {key: value for key, value in feature.info.items() if key != "resolution"}  # which the shape says
    info = {**(before if isinstance(before, dict) else {}), **of_column}
    return {**said, "info": info} if info else said


def hub_features(features: Mapping[str, Any], /) -> dict[str, Any]:
    """The features of a data file as the package `datasets` describes them, which its readers look for.

    Args:
        features: Those of `info.json`.
    """
    return {name: _hub(feature) for name, feature in features.items() if feature["dtype"] not in {"video", "language"}}


def _hub(feature: Mapping[str, Any]) -> dict[str, Any]:
    shape = feature["shape"]
    if feature["dtype"] == "image":
        return {"_type": "Image"}
    value = {"dtype": feature["dtype"], "_type": "Value"}
    if list(shape) == [1]:
        return value
    if len(shape) == 1:
        return {"feature": value, "length": shape[0], "_type": "Sequence"}
    return {"shape": list(shape), "dtype": feature["dtype"], "_type": f"Array{len(shape)}D"}
