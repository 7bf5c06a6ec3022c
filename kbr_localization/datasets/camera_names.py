"""What a camera is called, by its topic or by its folder."""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization.errors import DatasetError

# what the last parts of a topic say about the image rather than about the camera
_ABOUT_IMAGES = (
    'image',
    'image_raw',
    'image_color',
    'image_mono',
    'image_rect',
    'image_rect_color',
    'image_rect_gray',
    'image_rect_raw',
    'compressed',
    'color',
    'gray',
    'mono',
    'rgb',
    'raw',
    'rect',
)


def camera_name(where: str) -> str:
    """
    Name of a camera: `front` for the topic /robot/front/image_raw and for the folder front_cam.

    Empty for a topic that names none, such as /image.
    """
    parts = where.strip('/').split('/')
    while parts and parts[-1] in _ABOUT_IMAGES:
        parts.pop()
    return parts[-1].removesuffix('_cam') if parts else ''


def camera_names(places: Sequence[str]) -> tuple[str, ...]:
    """Names of several cameras; raises DatasetError unless each has its own."""
    names = tuple(camera_name(place) for place in places)
    if len(set(names)) < len(names) or '' in names or any(',' in name for name in names):
        raise DatasetError(
            f'cameras {", ".join(places)} would be called {", ".join(names)}: expected a '
            'different name for each, as in front/image and rear/image'
        )
    return names
