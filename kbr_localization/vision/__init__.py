"""
From an image to a descriptor that has a positive definite kernel.

The kernel of the descriptors that count visual words is that of spatial pyramid matching: how many
words two images have in common, in the same parts of the image (`spatial_pyramid` shows why it is
positive definite). That of HOG and of a network's output for the whole image is the cosine
(`whole_image`), that of several cameras the product of theirs (`multi_camera`).
`config.DESCRIPTORS` are the names that can be chosen.
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
