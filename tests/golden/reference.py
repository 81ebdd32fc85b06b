#!/usr/bin/env python3
"""reference.py MODEL.gguf IDS.txt OUT.golden: logits by an independent program.

Runs a GGUF model of the families llama, qwen2, qwen3 and gemma3 over the first 64 token ids of IDS.txt (white space
between them) in float64, with naive attention over all positions, and writes what tests/golden/test_golden.c compares with.
Needs NumPy only; shares no line with the library.  `make-golden` beside it regenerates all files.

OUT, little-endian: "VQGOLD1\\n"; u32 positions n, top t, fixed f; i32 ids [n]; i32 fixed_ids [f]; then for each position
f64 logsumexp, i32 top_ids [t] (falling logits), f32 top_logits [t], f32 fixed_logits [f].
"""
import struct
import sys

import numpy as np

N_POSITIONS, N_TOP, N_FIXED = 64, 32, 64
F = np.float64


# ---- the file -----------------------------------------------------------------------------------------------------
class Gguf:
    SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}

    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        self.at = 4
        assert self.bytes[:4].tobytes() == b"GGUF" and self.scalar("<u4") in (2, 3)
        n_tensors, n_values = self.scalar("<u8"), self.scalar("<u8")
        self.values = {}
        for _ in range(n_values):
            key = self.string()
            self.values[key] = self.value(self.scalar("<u4"))
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            dims = [int(self.scalar("<u8")) for _ in range(self.scalar("<u4"))]
            infos.append((name, dims, int(self.scalar("<u4")), int(self.scalar("<u8"))))
        align = self.values.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors = {name: (dims, kind, base + offset) for name, dims, kind, offset in infos}

    def scalar(self, dtype):
        n = np.dtype(dtype).itemsize
        v = self.bytes[self.at:self.at + n].view(dtype)[0]
        self.at += n
        return v

    def string(self):
        n = int(self.scalar("<u8"))
        s = self.bytes[self.at:self.at + n].tobytes().decode("utf-8", "replace")
        self.at += n
        return s

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.scalar("<u4"), int(self.scalar("<u8"))
            return [self.value(kind) for _ in range(n)]
        return self.scalar(self.SCALARS[int(kind)]).item()

    def rows(self, name, first=0, n=None):
        """Rows [first, first + n) of a tensor in float64: [n][dims[0]]."""
        dims, kind, offset = self.tensors[name]
        n_all = int(np.prod(dims[1:], dtype=np.int64))
        n = n_all - first if n is None else min(n, n_all - first)
        length, size, decode = TYPES[kind]
        row = dims[0] // length * size
        raw = np.asarray(self.bytes[offset + first * row:offset + (first + n) * row])
        return decode(raw.reshape(-1, size)).reshape(n, dims[0])

    def vector(self, name):
        return self.rows(name)[0] if name in self.tensors else None


# ---- weight types: raw blocks [n][bytes] -> values [n][length] -----------------------------------------------------
def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(F)


def nibbles(q):
    """Low halves of all bytes, then high halves."""
    return np.concatenate([q & 15, q >> 4], axis=-1)


def q4_0(b):
    return f16(b[:, 0:2]) * (nibbles(b[:, 2:18]).astype(F) - 8)


def q4_1(b):
    return f16(b[:, 0:2]) * nibbles(b[:, 4:20]) + f16(b[:, 2:4])


def fifth_bits(b):
    word = np.ascontiguousarray(b).view("<u4")
    return ((word >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4


def q5_0(b):
    return f16(b[:, 0:2]) * ((nibbles(b[:, 6:22]) | fifth_bits(b[:, 2:6])).astype(F) - 16)


def q5_1(b):
    return f16(b[:, 0:2]) * (nibbles(b[:, 8:24]) | fifth_bits(b[:, 4:8])) + f16(b[:, 2:4])


def q8_0(b):
    return f16(b[:, 0:2]) * np.ascontiguousarray(b[:, 2:34]).view(np.int8)


def k_scales(s):
    """Eight 6-bit scales and eight 6-bit minima from twelve bytes."""
    low, mid, high = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    least = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], axis=1)
    return scale.astype(F), least.astype(F)


def q4_k(b):
    scale, least = k_scales(b[:, 4:16])
    q = b[:, 16:144].reshape(-1, 4, 32)                      # 4 pairs of sub-blocks: low halves, high halves
    q = np.stack([q & 15, q >> 4], axis=2).reshape(-1, 8, 32)
    out = (f16(b[:, 0:2]) * scale)[:, :, None] * q - (f16(b[:, 2:4]) * least)[:, :, None]
    return out.reshape(-1, 256)


def q5_k(b):
    scale, least = k_scales(b[:, 4:16])
    q = b[:, 48:176].reshape(-1, 4, 32)
    q = np.stack([q & 15, q >> 4], axis=2).reshape(-1, 8, 32)
    high = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    out = (f16(b[:, 0:2]) * scale)[:, :, None] * (q | high << 4) - (f16(b[:, 2:4]) * least)[:, :, None]
    return out.reshape(-1, 256)


def q6_k(b):
    low = b[:, 0:128].reshape(-1, 2, 64)                     # per half: 64 bytes, low halves first
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    q = (low | high << 4).astype(F) - 32
    scale = np.ascontiguousarray(b[:, 192:208]).view(np.int8).reshape(-1, 16, 1)
    return (f16(b[:, 208:210])[:, :, None] * scale * q.reshape(-1, 16, 16)).reshape(-1, 256)


TYPES = {
    0: (1, 4, lambda b: np.ascontiguousarray(b).view("<f4").astype(F)),
    1: (1, 2, f16),
    2: (32, 18, q4_0), 3: (32, 20, q4_1), 6: (32, 22, q5_0), 7: (32, 24, q5_1), 8: (32, 34, q8_0),
    12: (256, 144, q4_k), 13: (256, 176, q5_k), 14: (256, 210, q6_k),
    30: (1, 2, lambda b: (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view("<f4").astype(F)),
}


# ---- the model ----------------------------------------------------------------------------------------------------
def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def rope_frequencies(g, arch, base, n_rot, scaled):
    freq = base ** (-np.arange(0, n_rot, 2, dtype=F) / n_rot)
    if not scaled:
        return freq
    kind = g.values.get(arch + ".rope.scaling.type", "linear")
    factor = g.values.get(arch + ".rope.scaling.factor", 1.0) or 1.0
    if kind == "linear":
        freq = freq / factor
    elif kind == "llama3":
        low = g.values.get(arch + ".rope.scaling.low_freq_factor", 1.0)
        high = g.values.get(arch + ".rope.scaling.high_freq_factor", 4.0)
        context = g.values.get(arch + ".rope.scaling.original_context_length", 8192)
        wave = 2 * np.pi / freq
        smooth = np.clip((context / wave - low) / (high - low), 0, 1)
        freq = (1 - smooth) * freq / factor + smooth * freq
    if "rope_freqs.weight" in g.tensors:
        freq = freq / g.vector("rope_freqs.weight")
    return freq


def rotate(x, freq, n_rot, halves):
    """x [n][heads][d], row i at position i."""
    angle = np.arange(len(x), dtype=F)[:, None, None] * freq
    c, s = np.cos(angle), np.sin(angle)
    first, second = (slice(0, n_rot // 2), slice(n_rot // 2, n_rot)) if halves else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out


def attention(q, k, v, scale, window):
    n, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, axis=1)) * scale
    back = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (back < 0) | ((back >= window) if window else False)
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, np.repeat(v, group, axis=1)).reshape(n, -1)


def hidden_states(g, ids):
    arch = g.values["general.architecture"]
    assert arch in ("llama", "qwen2", "qwen3", "gemma3"), arch

    def key(name, default=None):
        v = g.values.get(arch + "." + name, default)
        assert v is not None, name
        return v

    n_heads = key("attention.head_count")
    n_kv = key("attention.head_count_kv", n_heads)
    n_embd, n_layers, eps = key("embedding_length"), key("block_count"), key("attention.layer_norm_rms_epsilon")
    d = key("attention.key_length", n_embd // n_heads)
    d_v = key("attention.value_length", n_embd // n_heads)
    n_rot = key("rope.dimension_count", d)
    gemma, halves = arch == "gemma3", arch != "llama"
    window = key("attention.sliding_window", 0) if arch in ("llama", "gemma3") else 0
    pattern = key("attention.sliding_window_pattern", 6) if gemma else 1
    scale = 1 / np.sqrt(n_embd / n_heads if gemma and n_layers == 62 else d)
    base = key("rope.freq_base", 1e6 if gemma else 1e4)
    local_base = key("rope.freq_base_swa", 1e4) if gemma else base

    x = np.concatenate([g.rows("token_embd.weight", i, 1) for i in ids])
    if gemma:
        x = x * np.sqrt(n_embd)
    for layer in range(n_layers):
        def product(h, name):
            return h @ g.rows("blk.%d.%s.weight" % (layer, name)).T

        def vector(name):
            return g.vector("blk.%d.%s" % (layer, name))

        def biased(h, name):
            bias = vector(name + ".bias")
            return product(h, name) if bias is None else product(h, name) + bias

        is_global = not gemma or (not pattern[layer] if isinstance(pattern, list) else (layer + 1) % pattern == 0)
        h = rms_norm(x, vector("attn_norm.weight"), eps)
        q = biased(h, "attn_q").reshape(len(ids), n_heads, d)
        k = biased(h, "attn_k").reshape(len(ids), n_kv, d)
        v = biased(h, "attn_v").reshape(len(ids), n_kv, d_v)
        if arch in ("qwen3", "gemma3"):
            q = rms_norm(q, vector("attn_q_norm.weight"), eps)
            k = rms_norm(k, vector("attn_k_norm.weight"), eps)
        freq = rope_frequencies(g, arch, base if is_global else local_base, n_rot, is_global)
        q, k = rotate(q, freq, n_rot, halves), rotate(k, freq, n_rot, halves)
        o = product(attention(q, k, v, scale, 0 if gemma and is_global else window), "attn_output")
        x = x + (rms_norm(o, vector("post_attention_norm.weight"), eps) if gemma else o)

        h = rms_norm(x, vector("ffn_norm.weight"), eps)
        act = gelu if gemma else silu
        y = product(act(product(h, "ffn_gate")) * product(h, "ffn_up"), "ffn_down")
        x = x + (rms_norm(y, vector("post_ffw_norm.weight"), eps) if gemma else y)
    return rms_norm(x, g.vector("output_norm.weight"), eps)


def logits_of(g, ids):
    h = hidden_states(g, ids)
    head = "output.weight" if "output.weight" in g.tensors else "token_embd.weight"
    n_vocab = g.tensors[head][0][1]
    block = 16384
    return np.concatenate([h @ g.rows(head, i, block).T for i in range(0, n_vocab, block)], axis=1)


def main():
    model, ids_path, out_path = sys.argv[1:]
    g = Gguf(model)
    with open(ids_path) as f:
        ids = [int(word) for word in f.read().split()[:N_POSITIONS]]
    logits = logits_of(g, ids)
    assert np.isfinite(logits).all()
    n_vocab = logits.shape[1]
    n_top = min(N_TOP, n_vocab)
    fixed = np.arange(n_vocab) if n_vocab <= N_FIXED else np.sort(
        np.random.default_rng(20261129).choice(n_vocab, N_FIXED, replace=False))
    most = logits.max(axis=1)
    lse = most + np.log(np.exp(logits - most[:, None]).sum(axis=1))
    with open(out_path, "wb") as f:
        f.write(b"VQGOLD1\n" + struct.pack("<III", len(ids), n_top, len(fixed)))
        f.write(np.array(ids, "<i4").tobytes() + fixed.astype("<i4").tobytes())
        for row, total in zip(logits, lse):
            top = np.argsort(-row, kind="stable")[:n_top]
            f.write(struct.pack("<d", total) + top.astype("<i4").tobytes())
            f.write(row[top].astype("<f4").tobytes() + row[fixed].astype("<f4").tobytes())
    nll = [lse[i] - logits[i, ids[i + 1]] for i in range(len(ids) - 1)]
    print("%s: %d positions, perplexity %.4f" % (out_path, len(ids), np.exp(np.mean(nll))))


if __name__ == "__main__":
    main()
