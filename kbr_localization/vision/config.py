"""What the image front end can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbr_localization.configuration import parameter, validate
from kbr_localization.errors import ConfigurationError

LEARNED = 'learned_pyramid'
DESCRIPTORS = ('sift_pyramid', 'opencv_sift_pyramid', 'daisy', LEARNED, 'hog', 'onnx')
MOST_SAMPLES = 1_000_000
"""Patches that a vocabulary is learnt from; half a gigabyte of them."""
PREFIX = 'vision.'
"""Of the names of these parameters, for a user."""


@dataclass(frozen=True)
class VisionConfig:
    """
    How an image becomes a descriptor.

    Map images and queries are described with one configuration, which the map keeps. Raises
    ConfigurationError for a value outside its range. `PAPER`: [MbKSR] section 6.3.
    """

    descriptor: str = parameter(
        'sift_pyramid',
        'spatial pyramid of words of dense SIFT (own or OpenCV), of DAISY or of the local '
        'features of a network in an ONNX file; HOG of the whole image; or what a network in an '
        'ONNX file says of it',
        choices=DESCRIPTORS,
    )
    working_width: int = parameter(
        320, 'wider images are scaled down to this many columns', low=32, high=8192
    )
    scale_up: bool = parameter(
        True,
        'scale images up whose longer side has fewer pixels than that, but for learned_pyramid: '
        'to a camera of few pixels a patch is otherwise a large part of the image',
    )
    any_scale: bool = parameter(
        False, 'accept images of another size than the map has if their aspect ratio is the same'
    )
    illumination: str = parameter(
        'clahe', 'local contrast equalisation before description', choices=('none', 'clahe')
    )
    patch_size: int = parameter(
        24, 'side of a described patch in pixels of the scaled image, a multiple of 4', 8, 128
    )
    spacing: int = parameter(
        4, 'distance between patch centres in pixels of the scaled image', low=2, high=128
    )
    blur: float = parameter(
        1.2, 'standard deviation of the smoothing before gradients, pixels', low=0.0, high=8.0
    )
    gradient_sign: float = parameter(
        0.3,
        'sift_pyramid: how much it counts which side of an edge is the brighter one; 1 as much as '
        'the direction of the edge, 0 not at all, since lamps at night turn it around',
        low=0.0,
        high=1.0,
    )
    words: int = parameter(800, 'size of the visual vocabulary (M)', low=2, high=4096)
    vocabulary_tree: bool = parameter(
        True, 'find words through a tree of two levels: in some 40% of the time, all but as well'
    )
    patch_components: int = parameter(
        24,
        'principal components of a patch that words are told apart by; 0: all numbers, as of '
        'learned features always',
        0,
        256,
    )
    levels: int = parameter(
        1, 'finest level of the pyramid (L): 4**L cells of counts are kept', low=0, high=3
    )
    strips: int = parameter(
        2,
        'horizontal strips (S) that the coarser levels of the pyramid keep, since a camera that '
        'turns leaves what it sees in its strip; a power of two, at most 2**L; 1 is the pyramid '
        'of the papers',
        low=1,
        high=8,
    )
    root_counts: bool = parameter(
        True, 'compare square roots of counts, so that a large blank wall does not outvote all'
    )
    relative_counts: bool = parameter(
        True,
        "count words relative to their mean count in the map's images, so that rare ones tell "
        'places apart as much as common ones',
    )
    vocabulary_samples: int = parameter(
        60_000, 'patches that the vocabulary is learnt from', low=100, high=MOST_SAMPLES
    )
    projection: str = parameter(
        'perspective',
        'camera: perspective, or omnidirectional (a mirror), which is unwrapped to a panorama',
        choices=('perspective', 'omnidirectional'),
    )
    mirror_x: float = parameter(
        0.0, 'column of the mirror centre in pixels; 0: found from the images', 0.0, 1e5
    )
    mirror_y: float = parameter(
        0.0, 'row of the mirror centre in pixels; 0: found from the images', 0.0, 1e5
    )
    mirror_inner: float = parameter(
        0.0, 'radius in pixels where the robot ends and the view begins; 0: found', 0.0, 1e5
    )
    mirror_outer: float = parameter(
        0.0, 'radius in pixels where the view ends; 0: found from the images', 0.0, 1e5
    )
    network_file: str = parameter(
        '', 'ONNX file of the descriptors onnx and learned_pyramid; a copy goes in the map'
    )
    network_size: int = parameter(
        224, 'side of the square input of the network of the descriptor onnx', 8, 2048
    )
    network_width: int = parameter(
        640,
        'columns of the image that the network of learned_pyramid gets, if it takes any',
        32,
        8192,
    )
    network_threads: int = parameter(2, 'threads that the network of learned_pyramid uses', 1, 256)
    network_input: str = parameter(
        'imagenet',
        'what the network expects: colours normalised as for ImageNet, RGB or grey in [0, 1]; '
        'a network of local features with one channel gets grey',
        choices=('imagenet', 'rgb', 'grey'),
    )

    @property
    def prepared_width(self) -> int:
        """Columns that wider images are scaled down to."""
        return self.network_width if self.descriptor == LEARNED else self.working_width

    @property
    def least_side(self) -> int:
        """Pixels that smaller images are scaled up to; 0 where none is, as for a network."""
        return self.working_width if self.scale_up and self.descriptor != LEARNED else 0

    def __post_init__(self) -> None:
        """Refuse values out of range or at odds with each other."""
        validate(self, PREFIX)
        if self.patch_size % 4:
            raise ConfigurationError(
                f'parameter {PREFIX}patch_size: expected a multiple of 4, got {self.patch_size}'
            )
        possible = [2**power for power in range(self.levels + 1)]
        if self.strips not in possible:
            raise ConfigurationError(
                f'parameter {PREFIX}strips: expected one of {", ".join(map(str, possible))} with '
                f'levels={self.levels}, got {self.strips}'
            )


PAPER = VisionConfig(
    descriptor='opencv_sift_pyramid',
    working_width=8192,
    scale_up=False,
    illumination='none',
    patch_size=16,
    spacing=8,
    words=200,
    vocabulary_tree=False,
    patch_components=0,
    gradient_sign=1.0,
    levels=2,
    strips=1,
    root_counts=False,
    relative_counts=False,
)
"""
Dense SIFT of 16-pixel patches every 8 pixels of the full image, plain counts of 200 words on
three levels ([MbKSR] 6.3).
"""
BEFORE: dict[str, Any] = {
    'scale_up': False,
    'patch_components': 0,
    'vocabulary_tree': False,
    'gradient_sign': 1.0,
    'strips': 1,
    'relative_counts': False,
    'network_width': 640,
    'network_threads': 2,
}
"""Value of a parameter in maps that were made before it was there; each new one needs a line."""
