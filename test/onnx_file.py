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


def number(field, value):
    """Field with an integer."""
    return _varint(field << 3) + _varint(value)


def fixed32(field, value):
    """Field with a number of 32 bits."""
    return _varint(field << 3 | 5) + struct.pack('<f', value)


def record(field, *values):
    """Field with a text, bytes or the fields of a record."""
    data = b''.join(value.encode() if isinstance(value, str) else value for value in values)
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _ints(name, values):
    numbers = b''.join(number(8, value) for value in values)
    return record(5, record(1, name) + numbers + number(20, INTS))


def _int(name, value):
    return record(5, record(1, name) + number(3, value) + number(20, INT))


def _node(kind, inputs, outputs, attributes=b''):
    names = b''.join(record(1, name) for name in inputs)
    names += b''.join(record(2, name) for name in outputs)
    return record(1, names + record(4, kind) + attributes)


def weights(name, array):
    """Tensor of a graph with an array of float32."""
    dims = b''.join(number(1, size) for size in array.shape)
    raw = struct.pack(f'<{array.size}f', *array.ravel())
    return record(5, dims + number(2, FLOAT) + record(8, name) + record(9, raw))


def _value(field, name, shape):
    dims = b''.join(record(1, number(1, size)) for size in shape)
    tensor = record(1, number(1, FLOAT) + record(2, dims))
    return record(field, record(1, name) + record(2, tensor))


def convolution_network(kernels, side):
    """Return a network of a convolution (out, in, k, k), ReLU and 4 x 4 average pooling."""
    outputs, channels, kernel = kernels.shape[:3]
    pooled = (side - kernel + 1) // 4
    pool = _ints('kernel_shape', (4, 4)) + _ints('strides', (4, 4))
    graph = (
        _node('Conv', ['image', 'weights'], ['a'], _ints('kernel_shape', (kernel, kernel)))
        + _node('Relu', ['a'], ['b'])
        + _node('AveragePool', ['b'], ['c'], pool)
        + _node('Flatten', ['c'], ['vector'], _int('axis', 1))
        + record(2, 'tiny')
        + weights('weights', kernels)
        + _value(11, 'image', (1, channels, side, side))
        + _value(12, 'vector', (1, outputs * pooled * pooled))
    )
    return number(1, 7) + record(7, graph) + record(8, record(1, '') + number(2, 11))
