"""The labels of agents and of traffic lights, in the order of their probabilities."""

from __future__ import annotations

_NAMES = (
    "NOT_SET UNKNOWN DONTCARE CAR VAN TRAM BUS TRUCK EMERGENCY_VEHICLE OTHER_VEHICLE BICYCLE MOTORCYCLE CYCLIST "
    "MOTORCYCLIST PEDESTRIAN ANIMAL"
)
PERCEPTION_LABELS = [*(f"PERCEPTION_LABEL_{name}" for name in _NAMES.split()), "AVRESEARCH_LABEL_DONTCARE"]
"""The 17 labels of an agent."""

PERCEPTION_LABEL_TO_INDEX = {label: index for index, label in enumerate(PERCEPTION_LABELS)}

KEPT = range(PERCEPTION_LABEL_TO_INDEX["PERCEPTION_LABEL_CAR"], PERCEPTION_LABEL_TO_INDEX["AVRESEARCH_LABEL_DONTCARE"])
"""Labels of things that move by themselves: from `CAR` to `ANIMAL`."""

TL_FACE_LABELS = ["ACTIVE", "INACTIVE", "UNKNOWN"]
"""The states of a traffic light's face."""

TL_FACE_LABEL_TO_INDEX = {label: index for index, label in enumerate(TL_FACE_LABELS)}
