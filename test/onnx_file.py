"""Write tiny ONNX files: the protocol buffer by hand, so that no package is needed for it."""

import struct

FLOAT, INT, INTS = 1, 2, 7


def _varint(value):
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _bytes(field, value):
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _ints(name, values):
    numbers = b''.join(_number(8, value) for value in values)
    return _bytes(5, _bytes(1, name) + numbers + _number(20, INTS))


def _int(name, value):
    return _bytes(5, _bytes(1, name) + _number(3, value) + _number(20, INT))


def _node(kind, inputs, outputs, attributes=b''):
    names = b''.join(_bytes(1, name) for name in inputs)
    names += b''.join(_bytes(2, name) for name in outputs)
    return _bytes(1, names + _bytes(4, kind) + attributes)


def _weights(name, array):
    dims = b''.join(_number(1, size) for size in array.shape)
    raw = struct.pack(f'<{array.size}f', *array.ravel())
    return _bytes(5, dims + _number(2, FLOAT) + _bytes(8, name) + _bytes(9, raw))


def _value(field, name, shape):
    dims = b''.join(_bytes(1, _number(1, size)) for size in shape)
    tensor = _bytes(1, _number(1, FLOAT) + _bytes(2, dims))
    return _bytes(field, _bytes(1, name) + _bytes(2, tensor))


def convolution_network(weights, side):
    """Return a network of a convolution (out, in, k, k), ReLU and 4 x 4 average pooling."""
    outputs, channels, kernel = weights.shape[:3]
    pooled = (side - kernel + 1) // 4
    pool = _ints('kernel_shape', (4, 4)) + _ints('strides', (4, 4))
    graph = (
        _node('Conv', ['image', 'weights'], ['a'], _ints('kernel_shape', (kernel, kernel)))
        + _node('Relu', ['a'], ['b'])
        + _node('AveragePool', ['b'], ['c'], pool)
        + _node('Flatten', ['c'], ['vector'], _int('axis', 1))
        + _bytes(2, 'tiny')
        + _weights('weights', weights)
        + _value(11, 'image', (1, channels, side, side))
        + _value(12, 'vector', (1, outputs * pooled * pooled))
    )
    return _number(1, 7) + _bytes(7, graph) + _bytes(8, _bytes(1, '') + _number(2, 11))
