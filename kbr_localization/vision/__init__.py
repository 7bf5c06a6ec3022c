"""
From an image to a descriptor that has a positive definite kernel.

Descriptors that count visual words have the spatial pyramid matching kernel: how many words two
images share in the same parts of the image (`spatial_pyramid` shows why it is positive definite).
HOG and network outputs of the whole image have the cosine kernel (`factory`), several cameras
the product of their kernels (`describer`).

A new descriptor has a name in `config.DESCRIPTORS` and a line in `factory.DESCRIBERS`. One of
whole images is a `CameraDescriber` in `factory`. One of patches, whose words are counted, is a
class in `local_descriptors`, with a line in `local_descriptor` of `pyramid_describer`.
"""

from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.factory import describer_from_state, fit_describer

__all__ = ['Describer', 'VisionConfig', 'describer_from_state', 'fit_describer']
