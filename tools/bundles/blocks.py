"""GGUF storage types: geometry, scalar-equivalent decoding in numpy, and random valid blocks. Knows bytes, no models.

Every element is (d * scale) * q - dmin * min in float32, each operation rounded once: the definition that the C++ decoder
is compared with bit for bit."""
import numpy as np

F = np.float32

# name: (elements per block, bytes per block, ggml type id)
TYPES = {
    "F32": (1, 4, 0), "F16": (1, 2, 1), "BF16": (1, 2, 30),
    "Q4_0": (32, 18, 2), "Q4_1": (32, 20, 3), "Q5_0": (32, 22, 6), "Q5_1": (32, 24, 7), "Q8_0": (32, 34, 8),
    "IQ4_NL": (32, 18, 20),
    "Q2_K": (256, 84, 10), "Q3_K": (256, 110, 11), "Q4_K": (256, 144, 12), "Q5_K": (256, 176, 13), "Q6_K": (256, 210, 14),
    "IQ4_XS": (256, 136, 23),
}
FLOATS = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(t for t in TYPES if t not in FLOATS)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)


def byte_size(kind, dims):
    elements, size, _ = TYPES[kind]
    count = int(np.prod(dims, dtype=np.int64))
    if count % elements or (len(dims) and dims[-1] % elements):
        raise ValueError(f"{kind} needs rows of a multiple of {elements} elements, not {list(dims)}")
    return count // elements * size


# ---- floats

def to_bf16(x):
    """Bits of the nearest bfloat16, ties to even; finite input."""
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(F)


def portable(x):
    """The nearest values that F32, F16 and BF16 all hold exactly: one set of weights for every float format."""
    return from_bf16(to_bf16(np.asarray(x, F).astype(np.float16).astype(F)))


def encode_float(x, kind):
    if kind == "BF16":
        return to_bf16(x).tobytes()
    return np.ascontiguousarray(x, np.float16 if kind == "F16" else F).tobytes()


# ---- decoding; each function takes uint8 [blocks, bytes] and returns float32 [blocks, elements]

def _half(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(F)  # [blocks, 1] from two bytes


def _nibbles(q):
    """Low nibbles of all bytes, then high nibbles."""
    return np.concatenate([q & 15, q >> 4], 1).astype(F)


def _high_bits(raw):
    """The 32 bits of four bytes as 0 or 16, element i from bit i."""
    return np.unpackbits(raw, axis=1, bitorder="little").astype(F) * F(16)


def _q8_0(b):
    return _half(b[:, :2]) * b[:, 2:].view(np.int8).astype(F)


def _q4_0(b):
    return _half(b[:, :2]) * (_nibbles(b[:, 2:]) - F(8))


def _q4_1(b):
    return _half(b[:, :2]) * _nibbles(b[:, 4:]) + _half(b[:, 2:4])


def _q5_0(b):
    return _half(b[:, :2]) * (_nibbles(b[:, 6:]) + _high_bits(b[:, 2:6]) - F(16))


def _q5_1(b):
    return _half(b[:, :2]) * (_nibbles(b[:, 8:]) + _high_bits(b[:, 4:8])) + _half(b[:, 2:4])


def _iq4_nl(b):
    return _half(b[:, :2]) * IQ4[_nibbles(b[:, 2:]).astype(int)]


def _two_bits(qs):
    """[blocks, 64] bytes to [blocks, 256] values 0..3: two halves of four planes of 32."""
    planes = [(qs.reshape(-1, 2, 1, 32) >> shift) & 3 for shift in (0, 2, 4, 6)]
    return np.concatenate(planes, 2).reshape(-1, 256)


def _per_sub(scale, elements):
    return np.repeat(scale, elements, axis=1)


def _q2_k(b):
    sub, q = b[:, :16], _two_bits(b[:, 16:80]).astype(F)
    d, dmin = _half(b[:, 80:82]), _half(b[:, 82:84])
    return _per_sub(d * (sub & 15).astype(F), 16) * q - _per_sub(dmin * (sub >> 4).astype(F), 16)


def _q3_k(b):
    mask, low, packed, d = b[:, :32], _two_bits(b[:, 32:96]).astype(np.int32), b[:, 96:108], _half(b[:, 108:110])
    high = np.concatenate([(mask >> bit) & 1 for bit in range(8)], 1)  # plane e / 32 of 32 elements
    q = low - 4 * (1 - high.astype(np.int32))
    g = np.arange(16)
    scale = np.where(g < 8, packed[:, g % 8] & 15, packed[:, g % 8] >> 4)
    scale = scale | (((packed[:, 8 + g % 4] >> (2 * (g // 4)).astype(np.uint8)) & 3) << 4)
    return _per_sub(d * (scale.astype(F) - F(32)), 16) * q.astype(F)


def _six_bit_pairs(packed):
    """The eight 6-bit scales and eight 6-bit minimums in 12 bytes of Q4_K and Q5_K."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], 1)
    minimum = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], 1)
    return scale.astype(F), minimum.astype(F)


def _k_nibbles(qs):
    """[blocks, 128] bytes to [blocks, 8, 32]: each run of 32 bytes holds an even sub-block low and an odd one high."""
    run = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([run & 15, run >> 4], 2).reshape(-1, 8, 32)


def _q45_k(b, q):
    scale, minimum = _six_bit_pairs(b[:, 4:16])
    d, dmin = _half(b[:, :2]), _half(b[:, 2:4])
    return _per_sub(d * scale, 32) * q.reshape(-1, 256).astype(F) - _per_sub(dmin * minimum, 32)


def _q4_k(b):
    return _q45_k(b, _k_nibbles(b[:, 16:]))


def _q5_k(b):
    high = np.stack([(b[:, 16:48] >> bit) & 1 for bit in range(8)], 1)
    return _q45_k(b, _k_nibbles(b[:, 48:]) | (high << 4))


def _q6_k(b):
    low, high, scale, d = b[:, :128].reshape(-1, 2, 64), b[:, 128:192], b[:, 192:208].view(np.int8).astype(F), _half(b[:, 208:])
    low = np.concatenate([low & 15, low >> 4], 2).reshape(-1, 256)
    q = (low | (_two_bits(high) << 4)).astype(F) - F(32)
    return _per_sub(d * scale, 16) * q


def _iq4_xs(b):
    d, high, low = _half(b[:, :2]), np.ascontiguousarray(b[:, 2:4]).view(np.uint16), b[:, 4:8]
    k = np.arange(8)
    scale = ((low[:, k // 2] >> (4 * (k % 2)).astype(np.uint8)) & 15) | (((high >> (2 * k).astype(np.uint16)) & 3) << 4)
    run = b[:, 8:].reshape(-1, 8, 16)
    q = IQ4[np.concatenate([run & 15, run >> 4], 2).reshape(-1, 256)]
    return _per_sub(d * (scale.astype(F) - F(32)), 32) * q


_DECODE = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "IQ4_NL": _iq4_nl, "Q2_K": _q2_k,
           "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_XS": _iq4_xs}


def decode(raw, kind, dims):
    """float32 array of `dims` from the bytes of a tensor stored as `kind`."""
    raw = np.frombuffer(raw, np.uint8)
    if kind == "F32":
        return raw.view(F).reshape(dims)
    if kind == "F16":
        return raw.view(np.float16).astype(F).reshape(dims)
    if kind == "BF16":
        return from_bf16(raw.view(np.uint16)).reshape(dims)
    with np.errstate(all="ignore"):
        return _DECODE[kind](raw.reshape(-1, TYPES[kind][1])).reshape(dims)


# ---- random blocks

# Byte offsets of the f16 fields (d, then dmin or m) of each block, and the factor from an f16 d to the standard deviation
# of uniformly random quants and scales.
_HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "Q2_K": (80, 82),
           "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
_SPREAD = {"Q8_0": 74.0, "Q4_0": 4.6, "Q4_1": 4.6, "Q5_0": 9.2, "Q5_1": 9.2, "IQ4_NL": 68.0, "Q2_K": 12.0, "Q3_K": 42.0,
           "Q4_K": 250.0, "Q5_K": 510.0, "Q6_K": 1360.0, "IQ4_XS": 1270.0}
# What dmin (or m) must be for a zero mean, relative to d: minus the mean of scale * q over the mean of the minimum.
_CENTRE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def random_blocks(kind, count, rng, deviation=None):
    """uint8 [count, bytes]. With `deviation` the values have about that standard deviation and zero mean; without it
    every field is random over its whole finite range, the f16 scales included: subnormal, negative, huge."""
    size = TYPES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for index, at in enumerate(_HALVES[kind]):
        if deviation is None:
            bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
            bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits)  # infinities and NaN become subnormal
            value = bits.astype(np.uint16).view(np.float16)
        else:
            d = deviation / _SPREAD[kind]
            value = np.full(count, d if index == 0 else d * _CENTRE[kind], np.float16)
        blocks[:, at:at + 2] = value.view(np.uint8).reshape(-1, 2)
    return blocks
