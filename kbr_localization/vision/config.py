"""What the image front end can be told; the defaults are those of [MbKSR] section 6.3."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.configuration import parameter, validate


@dataclass(frozen=True)
class VisionConfig:
    """
    How an image becomes a descriptor.

    The descriptor of a map image and that of a query image are made with the same configuration,
    which is therefore kept in the map. Raises ConfigurationError for a value outside its range.
    """

    descriptor: str = parameter(
        'sift_pyramid',
        'what an image is described by: spatial pyramid of dense SIFT words',
        choices=('sift_pyramid',),
    )
    patch_size: int = parameter(16, 'side of a described patch in pixels', low=8, high=128)
    spacing: int = parameter(8, 'distance between patch centres in pixels', low=2, high=128)
    words: int = parameter(200, 'size of the visual vocabulary (M)', low=2, high=4096)
    levels: int = parameter(
        2, 'finest level of the pyramid (L): 4**L cells of counts are kept', low=0, high=3
    )
    vocabulary_samples: int = parameter(
        100_000, 'patches that the vocabulary is learnt from', low=100, high=10_000_000
    )

    def __post_init__(self) -> None:
        validate(self)
