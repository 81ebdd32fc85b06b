"""A model's forward pass in numpy, for studies that put anything at all into the place of keys and values.

Weights are read and dequantised by libveloxquant (ctypes), in f32; llama and gemma3 models, one context at a time. It is the exact mode
of the library but for the order of sums: bench/kv-metric compares its logits' perplexity with `veloxquant eval perplexity --exact`.
"""
import ctypes
import math

import numpy as np


class _Str(ctypes.Structure):
    _fields_ = [("at", ctypes.POINTER(ctypes.c_char)), ("n_bytes", ctypes.c_size_t)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", _Str), ("type", ctypes.c_int), ("n_dims", ctypes.c_uint32), ("dims", ctypes.c_uint64 * 4),
                ("data", ctypes.c_void_p), ("n_bytes", ctypes.c_uint64)]


class _Value(ctypes.Structure):
    _fields_ = [("key", _Str), ("kind", ctypes.c_int), ("array_kind", ctypes.c_int), ("n", ctypes.c_uint64), ("raw", ctypes.c_void_p),
                ("strings", ctypes.POINTER(_Str))]


class _Error(ctypes.Structure):
    _fields_ = [("room", ctypes.c_char * 4096)]


class File:
    """Keys, tensors and the vocabulary of a GGUF file."""

    def __init__(self, library, path):
        self.lib = lib = ctypes.CDLL(library)
        for name, result in (("vq_gguf_tensor", ctypes.POINTER(_Tensor)), ("vq_gguf_find", ctypes.POINTER(_Value)),
                             ("vq_tokenizer_bos", ctypes.c_int32), ("vq_tokenizer_adds_bos", ctypes.c_bool)):
            getattr(lib, name).restype = result
        lib.vq_type_dequantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        lib.vq_type_dequantize.restype = None
        self.error, self.at = _Error(), ctypes.c_void_p()
        self._do(lib.vq_gguf_open(ctypes.byref(self.at), path.encode(), ctypes.byref(self.error)))

    def _do(self, status):
        if status:
            raise SystemExit("kv-metric: libveloxquant says status %d" % status)

    def tensor(self, name):
        t = self.lib.vq_gguf_tensor(self.at, name.encode())
        if not t:
            return None
        t = t.contents
        shape = [int(n) for n in t.dims[:t.n_dims]][::-1]
        out = np.empty(shape, np.float32)
        self.lib.vq_type_dequantize(t.type, t.data, out.ctypes.data, out.size)
        return out

    def number(self, key, otherwise=None):
        v = self.lib.vq_gguf_find(self.at, key.encode())
        if not v:
            return otherwise
        kinds = {0: ctypes.c_uint8, 1: ctypes.c_int8, 2: ctypes.c_uint16, 3: ctypes.c_int16, 4: ctypes.c_uint32, 5: ctypes.c_int32,
                 6: ctypes.c_float, 7: ctypes.c_uint8, 10: ctypes.c_uint64, 11: ctypes.c_int64, 12: ctypes.c_double}
        kind = kinds[v.contents.array_kind if v.contents.kind == 9 else v.contents.kind]
        values = [kind.from_address(v.contents.raw + i * ctypes.sizeof(kind)).value for i in range(v.contents.n)]
        return values if v.contents.kind == 9 else values[0]

    def text(self, key):
        v = self.lib.vq_gguf_find(self.at, key.encode()).contents
        return ctypes.string_at(v.strings[0].at, v.strings[0].n_bytes).decode()

    def ids(self, path, n):
        """The first n tokens of a text, the BOS first where the model wants one."""
        lib, t, ids, count = self.lib, ctypes.c_void_p(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self._do(lib.vq_tokenizer_open(ctypes.byref(t), self.at, ctypes.byref(self.error)))
        with open(path, "rb") as f:
            text = f.read(16 * n)      # cut where no token that is used can be touched
        self._do(lib.vq_tokenize(t, text, ctypes.c_size_t(len(text)), 2, ctypes.byref(ids), ctypes.byref(count), ctypes.byref(self.error)))
        if count.value < n:
            raise SystemExit("kv-metric: %s has only %d tokens" % (path, count.value))
        out = np.array(ids[:n])
        lib.vq_free(ids)
        lib.vq_tokenizer_close(t)
        return out


def norm(x, weight, eps):
    return x * (1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))) * weight


def causal(n, window):
    """[n][n], 0 where a query sees a key, -inf elsewhere."""
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    return np.where((j <= i) & ((window == 0) | (i - j < window)), np.float32(0), np.float32(-np.inf))


def soft_max(s):
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return s


class Rope:
    def __init__(self, base, d, halves):
        self.freq, self.halves = base ** (-2.0 * np.arange(d // 2) / d), halves

    def turn(self, x, positions):
        """x [n][..][d] turned by positions [n]."""
        angle = np.asarray(positions, np.float64)[:, None] * self.freq
        shape = (len(angle),) + (1,) * (x.ndim - 2) + (-1,)
        co, si = np.cos(angle).astype(np.float32).reshape(shape), np.sin(angle).astype(np.float32).reshape(shape)
        out, half = np.empty_like(x), x.shape[-1] // 2
        first, second = (slice(0, half), slice(half, None)) if self.halves else (slice(0, None, 2), slice(1, None, 2))
        out[..., first] = x[..., first] * co - x[..., second] * si
        out[..., second] = x[..., first] * si + x[..., second] * co
        return out


class Model:
    def __init__(self, library, path):
        self.file = f = File(library, path)
        self.family = family = f.text("general.architecture")
        if family not in ("llama", "gemma3"):
            raise SystemExit("kv-metric: %s models are not done here" % family)
        key = lambda name, otherwise=None: f.number("%s.%s" % (family, name), otherwise)
        self.n_layers, self.n_embd, self.n_heads = key("block_count"), key("embedding_length"), key("attention.head_count")
        self.n_kv_heads = key("attention.head_count_kv", self.n_heads)
        self.d = key("attention.key_length", self.n_embd // self.n_heads)
        self.eps, self.scale = key("attention.layer_norm_rms_epsilon"), np.float32(1 / math.sqrt(self.d))
        self.gemma = family == "gemma3"
        base = key("rope.freq_base", 1e6 if self.gemma else 1e4)
        self.ropes = [Rope(base, self.d, self.gemma)] * self.n_layers
        self.windows = [0] * self.n_layers
        if self.gemma:
            local, window = Rope(key("rope.freq_base_swa", 1e4), self.d, True), key("attention.sliding_window")
            slides = key("attention.sliding_window_pattern", 6)
            slides = [bool(s) for s in slides] if isinstance(slides, list) else [(i + 1) % slides != 0 for i in range(self.n_layers)]
            self.ropes = [local if s else self.ropes[0] for s in slides]
            self.windows = [window if s else 0 for s in slides]
        names = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
        names += ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"] if self.gemma else []
        self.layers = [{n: f.tensor("blk.%d.%s.weight" % (i, n)) for n in names} for i in range(self.n_layers)]
        self.embd, self.output_norm = f.tensor("token_embd.weight"), f.tensor("output_norm.weight")
        head = f.tensor("output.weight")
        self.head = self.embd if head is None else head

    def ids(self, path, n):
        return self.file.ids(path, n)

    def run(self, ids, attend):
        """The residual stream after all layers. attend(layer, q_before, k_before, q, k, v) -> [n][n_heads d], rows [n][heads][d]."""
        n, d = len(ids), self.d
        x = self.embd[ids] * np.float32(math.sqrt(self.n_embd) if self.gemma else 1)
        positions = np.arange(n)
        for l, w in enumerate(self.layers):
            h = norm(x, w["attn_norm"], self.eps)
            q, k, v = ((h @ w[name].T).reshape(n, -1, d) for name in ("attn_q", "attn_k", "attn_v"))
            if self.gemma:
                q, k = norm(q, w["attn_q_norm"], self.eps), norm(k, w["attn_k_norm"], self.eps)
            rope = self.ropes[l]
            o = attend(l, q, k, rope.turn(q, positions), rope.turn(k, positions), v) @ w["attn_output"].T
            x = x + (norm(o, w["post_attention_norm"], self.eps) if self.gemma else o)
            h = norm(x, w["ffn_norm"], self.eps)
            gate, up = h @ w["ffn_gate"].T, h @ w["ffn_up"].T
            inner = np.float32(2 * math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate * gate * gate) if self.gemma else gate
            gate *= up / (1 + np.exp(-np.maximum(inner, -80)))
            o = gate @ w["ffn_down"].T
            x = x + (norm(o, w["post_ffw_norm"], self.eps) if self.gemma else o)
        return x

    def log_probabilities(self, x):
        """Of rows of the residual stream [n][n_embd] -> [n][n_vocab]."""
        s = norm(x, self.output_norm, self.eps) @ self.head.T
        s -= s.max(axis=-1, keepdims=True)
        s -= np.log(np.exp(s).sum(axis=-1, keepdims=True))
        return s

    def attention(self, l, q, k, v, k_coded=None, v_coded=None, packed=None):
        """packed [n][n]: which query meets the coded form of which row."""
        n, group = len(q), self.n_heads // self.n_kv_heads
        seen, out = causal(n, self.windows[l]), np.empty((n, self.n_heads, self.d), np.float32)
        for h in range(self.n_heads):
            g = h // group
            s = q[:, h] @ k[:, g].T
            if k_coded is not None:
                np.copyto(s, q[:, h] @ k_coded[:, g].T, where=packed)
            s *= self.scale
            s += seen
            p = soft_max(s)
            if v_coded is None:
                out[:, h] = p @ v[:, g]
            else:
                coded = p * packed
                out[:, h] = (p - coded) @ v[:, g] + coded @ v_coded[:, g]
        return out.reshape(n, -1)
