"""Parameters of the image descriptors."""

from dataclasses import dataclass
from typing import ClassVar

from kbr_localization.configuration import Config, parameter
from kbr_localization.errors import ConfigurationError

LEARNED = 'learned_pyramid'
DESCRIPTORS = ('sift_pyramid', 'daisy', LEARNED, 'hog', 'onnx')


@dataclass(frozen=True)
class VisionConfig(Config):
    """How the images of a map and query images are described; stored in the map file."""

    prefix: ClassVar[str] = 'vision.'
    descriptor: str = parameter(
        'sift_pyramid',
        'spatial pyramid of visual words of dense SIFT, of DAISY or of the local features of a '
        'network; HOG of the whole image; or the output of a network for the whole image',
        choices=DESCRIPTORS,
    )
    working_width: int = parameter(
        320, 'wider images are scaled down to this many columns', low=32, high=8192
    )
    scale_up: bool = parameter(
        True, 'scale images up whose longer side has fewer pixels, except for learned_pyramid'
    )
    any_scale: bool = parameter(
        False, 'accept images of another size than the map images if the aspect ratio is the same'
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
    words: int = parameter(800, 'size of the visual vocabulary (M)', low=2, high=4096)
    vocabulary_tree: bool = parameter(
        True,
        'find words through a two-level tree: takes about 40% of the time, nearly as accurate',
    )
    patch_components: int = parameter(
        24,
        'principal components of a patch descriptor that words are compared by, 0 for the whole '
        'descriptor; features of a network are never reduced',
        0,
        256,
    )
    pyramid: str = parameter(
        'roots',
        'square roots of weighted counts in 2 x 2 cells and two halves, or plain counts of plain '
        'SIFT in 1 + 4 + 16 cells as in the papers',
        choices=('roots', 'papers'),
    )
    vocabulary_samples: int = parameter(
        60_000, 'number of patches that the vocabulary is learnt from', low=100, high=1_000_000
    )
    projection: str = parameter(
        'perspective',
        'perspective, or omnidirectional: the mirror is detected and its image is unwrapped',
        choices=('perspective', 'omnidirectional'),
    )
    network_file: str = parameter(
        '', 'ONNX file for the descriptors onnx and learned_pyramid; the map stores a copy'
    )
    network_size: int = parameter(
        224, 'side of the square input image, if the network of onnx takes any size', 8, 2048
    )
    network_width: int = parameter(
        640, 'columns of the input image, if the network of learned_pyramid takes any', 32, 8192
    )
    network_threads: int = parameter(2, 'threads for running the network', 1, 256)
    network_input: str = parameter(
        'imagenet',
        'input of the network: colours normalised as for ImageNet, or RGB or grey in [0, 1]; '
        'a network with one input channel always gets grey',
        choices=('imagenet', 'rgb', 'grey'),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_size % 4:
            raise ConfigurationError(
                f'parameter vision.patch_size: expected a multiple of 4, got {self.patch_size}'
            )
