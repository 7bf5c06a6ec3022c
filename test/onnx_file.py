"""Write tiny ONNX files, so that no package is needed for it."""

from kbr_localization.vision.onnx_writer import (
    attribute,
    fixed32,
    model,
    node,
    number,
    record,
    tensor,
    value,
)

__all__ = ['convolution_network', 'feature_network', 'fixed32', 'number', 'record', 'weights']

weights = tensor
"""By the name that a test may put another in the place of."""


def convolution_network(kernels, side):
    """Return a network of a convolution (out, in, k, k), ReLU and 4 x 4 average pooling."""
    outputs, channels, kernel = kernels.shape[:3]
    pooled = (side - kernel + 1) // 4
    pool = attribute('kernel_shape', (4, 4)) + attribute('strides', (4, 4))
    graph = (
        node('Conv', ['image', 'weights'], ['a'], attribute('kernel_shape', (kernel, kernel)))
        + node('Relu', ['a'], ['b'])
        + node('AveragePool', ['b'], ['c'], pool)
        + node('Flatten', ['c'], ['vector'], attribute('axis', 1))
        + record(2, 'tiny')
        + weights('weights', kernels)
        + value(11, 'image', (1, channels, side, side))
        + value(12, 'vector', (1, outputs * pooled * pooled))
    )
    return model(graph, 11)


def feature_network(kernels, reliable=True, shape=('height', 'width')):
    """
    Return a network of local features: a convolution (out, in, k, k) of patches side by side.

    The reliability of a feature is the first of its numbers, where it is positive.
    """
    outputs, channels, kernel = kernels.shape[:3]
    side = attribute('kernel_shape', (kernel, kernel)) + attribute('strides', (kernel, kernel))
    first = weights('first', kernels[:1])
    graph = (
        node('Conv', ['image', 'weights'], ['features'], side)
        + (node('Conv', ['image', 'first'], ['raw'], side) if reliable else b'')
        + (node('Relu', ['raw'], ['reliability']) if reliable else b'')
        + record(2, 'tiny')
        + weights('weights', kernels)
        + (first if reliable else b'')
        + value(11, 'image', (1, channels, *shape))
        + value(12, 'features', (1, outputs, 'rows', 'columns'))
        + (value(12, 'reliability', (1, 1, 'rows', 'columns')) if reliable else b'')
    )
    return model(graph)
