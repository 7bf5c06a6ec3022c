"""
From an image to a descriptor that has a positive definite kernel.

The kernel between two images is that of spatial pyramid matching: how many visual words the two
have in common, in the same parts of the image. See `spatial_pyramid` for why it is positive
definite.
"""

from kbr_localization.vision.config import PAPER, VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.factory import describer_from_state, fit_cameras, fit_describer

__all__ = [
    'PAPER',
    'Describer',
    'VisionConfig',
    'describer_from_state',
    'fit_cameras',
    'fit_describer',
]
