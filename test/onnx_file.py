"""Tiny ONNX networks, made with the package onnx."""

from onnx import helper, numpy_helper, TensorProto


def network(nodes, weights, image, outputs):
    """Bytes of a network; `weights`: arrays by name, `image`, `outputs`: shapes (by name)."""
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        'tiny',
        [helper.make_tensor_value_info('image', float32, image)],
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid('', 11)
    return helper.make_model(graph, ir_version=7, opset_imports=[opset]).SerializeToString()


def convolution_network(kernels, side):
    """Return a network of a convolution (out, in, k, k), ReLU and 4 x 4 average pooling."""
    outputs, channels, kernel = kernels.shape[:3]
    pooled = (side - kernel + 1) // 4
    nodes = [
        helper.make_node('Conv', ['image', 'weights'], ['a']),
        helper.make_node('Relu', ['a'], ['b']),
        helper.make_node('AveragePool', ['b'], ['c'], kernel_shape=(4, 4), strides=(4, 4)),
        helper.make_node('Flatten', ['c'], ['vector']),
    ]
    vector = {'vector': (1, outputs * pooled * pooled)}
    return network(nodes, {'weights': kernels}, (1, channels, side, side), vector)


def feature_network(kernels, reliable=True, shape=('height', 'width')):
    """
    Return a network of local features: a convolution (out, in, k, k) of patches side by side.

    The reliability of a feature is the first of its numbers, where it is positive.
    """
    strides = kernels.shape[2:]
    nodes = [helper.make_node('Conv', ['image', 'weights'], ['features'], strides=strides)]
    outputs, weights = {'features': (1, len(kernels), 'rows', 'columns')}, {'weights': kernels}
    if reliable:
        nodes += [
            helper.make_node('Conv', ['image', 'first'], ['raw'], strides=strides),
            helper.make_node('Relu', ['raw'], ['reliability']),
        ]
        outputs['reliability'] = (1, 1, 'rows', 'columns')
        weights['first'] = kernels[:1]
    return network(nodes, weights, (1, kernels.shape[1], *shape), outputs)
