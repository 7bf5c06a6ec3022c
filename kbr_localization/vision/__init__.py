"""
Image descriptors, each with a positive definite kernel.

Histograms of visual words use the spatial pyramid matching kernel: how many words two images
share in the same parts of the image (`spatial_pyramid` proves that it is positive definite).
HOG and network outputs for the whole image use the cosine kernel (`factory`). The kernel of
several cameras is the product of the kernels of the cameras (`describer`).

To add a descriptor, add its name to `config.DESCRIPTORS` and its class to `factory.DESCRIBERS`.
A descriptor of the whole image is a `CameraDescriber` in `factory`. A descriptor of patches, whose
words are counted, is a class in `local_descriptors` that `pyramid_describer.local_descriptor`
returns.
"""

from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.factory import describer_from_state, fit_describer

__all__ = ['Describer', 'VisionConfig', 'describer_from_state', 'fit_describer']
