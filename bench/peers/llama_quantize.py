#!/usr/bin/env python3
"""A GGUF file in another type, made by llama.cpp itself.

usage: llama_quantize.py SOURCE OUT FTYPE TABLES

FTYPE: F16, Q4_0, Q2_K, Q3_K_M, Q4_K_M.  TABLES: the type of token embeddings and output head, or "same".  Files that are
quantised already are quantised again.
"""
import ctypes
import sys

import llama_cpp.llama_cpp as C

FTYPES = {"F16": 1, "Q4_0": 2, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15}
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q6_K": 14}


@C.llama_log_callback
def no_log(level, text, user_data):
    pass


def main():
    source, out, ftype, tables = sys.argv[1:5]
    C.llama_log_set(no_log, ctypes.c_void_p(0))
    params = C.llama_model_quantize_default_params()
    params.ftype = FTYPES[ftype]
    params.allow_requantize = True
    params.nthread = 2
    if tables != "same":
        params.token_embedding_type = params.output_tensor_type = TYPES[tables]
    return C.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))


sys.exit(main())
