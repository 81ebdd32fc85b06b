#!/usr/bin/env python3
"""llama.cpp as a process that obeys the commands of bench/peers/worker.c, through llama-cpp-python's low-level API.

usage: llama_cpp_worker.py MODEL THREADS CONTEXT KEYS VALUES [flash=on|off]

KEYS and VALUES are cache types: f16, f32, q8_0, q4_0, ...; quantised values need flash=on.
"""
import ctypes
import json
import os
import struct
import sys
import time

import llama_cpp
import llama_cpp.llama_cpp as C
import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
FILL_BATCH = 512
SEED_TOKENS = 64    # evaluated, then repeated, by `rows`


@C.llama_log_callback
def no_log(level, text, user_data):
    pass


def draw_ids(n, seed, n_vocab):
    """splitmix64 of seed + i, as in worker.c."""
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(n_vocab)).astype(np.int32)


class Reader:
    """Reads a saved sequence from front to back."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, fmt):
        values = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return values[0] if len(values) == 1 else values

    def bytes(self, n):
        self.at += n
        return np.frombuffer(self.data, dtype=np.uint8, count=n, offset=self.at - n)


def repeated(a, n, axis):
    """The first n of a's entries along the axis, a being repeated as often as it takes."""
    times = -(-n // a.shape[axis])
    return np.take(np.concatenate([a] * times, axis=axis), range(n), axis=axis)


def grown_cache(r, out, first, n):
    """One cache of a saved sequence, with its cells repeated to positions [first, first + n)."""
    n_stream, n_cells = r.take("II")
    if n_stream != 1:
        raise RuntimeError("a saved sequence of %d streams" % n_stream)
    for i in range(n_cells):
        if r.take("iIi") != (i, 1, 0):
            raise RuntimeError("a saved sequence whose cells are not in order")
    cells = np.empty((n, 3), dtype="<i4")
    cells[:, 0], cells[:, 1], cells[:, 2] = range(first, first + n), 1, 0
    transposed, n_layers = r.take("II")
    out += [struct.pack("<II", 1, n), cells.tobytes(), struct.pack("<II", transposed, n_layers)]
    for values in (False, True):
        for _ in range(n_layers):
            kind = r.take("i")
            if values and transposed:       # by channel
                each, n_channels = r.take("II")
                rows = r.bytes(n_channels * n_cells * each).reshape(n_channels, n_cells, each)
                out += [struct.pack("<iII", kind, each, n_channels), repeated(rows, n, 1).tobytes()]
            else:
                each = r.take("Q")
                rows = r.bytes(n_cells * each).reshape(n_cells, each)
                out += [struct.pack("<iQ", kind, each), repeated(rows, n, 0).tobytes()]


def grown(data, n, window):
    """A saved sequence of a few tokens as one of n: the same rows again and again, at positions of their own.  A second
    cache is that of layers with a window."""
    r, out = Reader(data), []
    out.append(bytes(r.bytes(8)))
    while r.at < len(data):
        held = n if len(out) == 1 or not window else min(n, window)
        grown_cache(r, out, n - held, held)
    return b"".join(out)


class Worker:
    def __init__(self, path, threads, n_ctx, keys, values, flash):
        C.llama_log_set(no_log, ctypes.c_void_p(0))
        C.llama_backend_init()
        model_params = C.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = C.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise SystemExit("llama_cpp_worker: %s: could not be loaded" % path)
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = n_ctx
        params.n_ubatch = FILL_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k, params.type_v = TYPES[keys], TYPES[values]
        params.flash_attn_type = 1 if flash == "on" else 0
        params.no_perf = True
        params.swa_full = False      # what its own programs do: windowed layers hold their window only
        self.ctx = C.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit("llama_cpp_worker: no context with cache types %s and %s, flash=%s" % (keys, values, flash))
        self.memory = C.llama_get_memory(self.ctx)
        self.n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self.model))
        self.batch = C.llama_batch_init(n_ctx, 0, 1)
        self.n_tokens = 0

    def eval(self, ids, all_logits=False):
        for i, token in enumerate(ids.tolist()):
            self.batch.token[i] = token
            self.batch.pos[i] = self.n_tokens + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = all_logits or i == len(ids) - 1
        self.batch.n_tokens = len(ids)
        if C.llama_decode(self.ctx, self.batch) != 0:
            raise RuntimeError("llama_decode failed at %d tokens" % self.n_tokens)
        self.n_tokens += len(ids)

    def clear(self):
        C.llama_memory_clear(self.memory, True)
        self.n_tokens = 0
        return {}

    def timed(self, n, seed, step):
        ids = draw_ids(n, seed, self.n_vocab)
        wall, cpu = time.perf_counter(), time.process_time()
        for i in range(0, n, step):
            self.eval(ids[i:i + step])
            C.llama_get_logits_ith(self.ctx, -1)       # waits for the result
        return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}

    def rows(self, n):
        """n tokens in all without evaluating them: llama.cpp's quantised caches take an hour to fill to 32,768.  What is
        decoded then means nothing, but costs what it does after evaluating."""
        began = time.perf_counter()
        target = self.n_tokens + n
        self.clear()
        if target > SEED_TOKENS:
            self.eval(draw_ids(SEED_TOKENS, 7, self.n_vocab))
            size = C.llama_state_seq_get_size(self.ctx, 0)
            state = (ctypes.c_uint8 * size)()
            if C.llama_state_seq_get_data(self.ctx, state, size, 0) != size:
                raise RuntimeError("the sequence could not be saved")
            data = grown(bytes(state), target, C.llama_model_n_swa(self.model))
            self.clear()
            state = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            if C.llama_state_seq_set_data(self.ctx, state, len(data), 0) != len(data):
                raise RuntimeError("a sequence of %d tokens could not be restored" % target)
            self.n_tokens = target
        else:
            self.eval(draw_ids(target, 7, self.n_vocab))
        return {"seconds": time.perf_counter() - began}

    def nll(self, ids_path, out_path, skip):
        ids = np.fromfile(ids_path, dtype=np.int32)
        self.clear()
        out = []
        for first in range(0, len(ids), FILL_BATCH):
            chunk = ids[first:first + FILL_BATCH]
            self.eval(chunk, all_logits=True)
            logits = np.ctypeslib.as_array(C.llama_get_logits(self.ctx), shape=(len(chunk), self.n_vocab))
            for i in range(max(first, skip), min(first + len(chunk), len(ids) - 1)):
                row = logits[i - first].astype(np.float64)
                top = row.max()
                out.append(np.log(np.exp(row - top).sum()) + top - row[ids[i + 1]])
        np.array(out, dtype=np.float64).tofile(out_path)
        return {"n": len(out)}

    def tokenize(self, text_path, out_path):
        with open(text_path, "rb") as f:
            text = f.read()
        vocab = C.llama_model_get_vocab(self.model)
        ids = (C.llama_token * (len(text) + 16))()
        n = C.llama_tokenize(vocab, text, len(text), ids, len(ids), False, False)
        np.array(ids[:n], dtype=np.int32).tofile(out_path)
        bos = C.llama_vocab_bos(vocab) if C.llama_vocab_get_add_bos(vocab) else -1
        return {"n": n, "bos": bos}

    def status(self):
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        return {"tokens": self.n_tokens, "rss_bytes": resident}

    def obey(self, words):
        if words[0] == "clear":
            return self.clear()
        if words[0] in ("fill", "prompt"):
            # A prompt is one llama_decode, which llama.cpp itself cuts into micro-batches.
            return self.timed(int(words[1]), int(words[2]), int(words[1]))
        if words[0] == "rows":
            return self.rows(int(words[1]))
        if words[0] == "decode":
            return self.timed(int(words[1]), int(words[2]), 1)
        if words[0] == "nll":
            return self.nll(words[1], words[2], int(words[3]))
        if words[0] == "tokenize":
            return self.tokenize(words[1], words[2])
        if words[0] == "status":
            return self.status()
        raise RuntimeError("unknown command")


def main():
    path, threads, n_ctx, keys, values = sys.argv[1:6]
    flash = sys.argv[6].split("=")[1] if len(sys.argv) > 6 else "on"
    worker = Worker(path, int(threads), int(n_ctx), keys, values, flash)
    print(json.dumps({"system": "llama.cpp", "version": "llama-cpp-python " + llama_cpp.__version__,
                      "n_vocab": worker.n_vocab, "build": C.llama_print_system_info().decode().strip()}), flush=True)
    for line in sys.stdin:
        try:
            answer = worker.obey(line.split())
        except (RuntimeError, OSError, IndexError, ValueError) as e:
            print("llama_cpp_worker: %s" % e, file=sys.stderr)
            answer = {"error": str(e)}
        print(json.dumps(answer), flush=True)


main()
