"""One cache of VeloxQuant-MLX on the CPU: a window of tokens in generation order, what it holds, how fast.

usage: mlx_worker.py convert MODEL.gguf FOLDER
       mlx_worker.py run FOLDER IDS SKIP METHOD NLL

`convert` dequantises a GGUF file of the llama family into a Hugging Face folder with f32 weights, the only type that MLX
multiplies at a usable speed on a CPU. `run` reads IDS, a file of int32 token ids; the first SKIP tokens are the prompt, the
others go in one by one, and the -log p of each of those is written to NLL as float64. METHOD is f16, mlx_lm's own cache (it
takes the type of the model's rows), or NAME:field=value,.. of its KVCacheConfig. Answers with one JSON object.
"""
import gc
import json
import os
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight", "output": "lm_head.weight"}


def name_in_hf(name):
    parts = name.split(".")
    return TOP[parts[0]] if parts[0] in TOP else "model.layers.%s.%s.weight" % (parts[1], PARTS[parts[2]])


def pairs_to_halves(w, n_heads):
    """GGUF files of the llama family keep the rows that RoPE turns together side by side, MLX half a head apart."""
    return w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def convert(path, folder):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    field = lambda key: reader.fields["llama." + key].contents()
    n_heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    weights = {}
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type)
        part = t.name.split(".")[2] if t.name.startswith("blk.") else ""
        if part in n_heads:
            w = pairs_to_halves(w, n_heads[part])
        weights[name_in_hf(t.name)] = mx.array(w.astype(np.float32))
    mx.save_safetensors(os.path.join(folder, "model.safetensors"), weights, metadata={"format": "mlx"})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": field("embedding_length"),
        "num_hidden_layers": field("block_count"), "intermediate_size": field("feed_forward_length"),
        "num_attention_heads": n_heads["attn_q"], "num_key_value_heads": n_heads["attn_k"],
        "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")), "rope_theta": float(field("rope.freq_base")),
        "max_position_embeddings": field("context_length"), "vocab_size": len(weights[TOP["token_embd"]]),
        "tie_word_embeddings": TOP["output"] not in weights,
    }
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def bytes_held(thing, seen):
    """Of every array that can be reached from a cache, each counted once, at its full size."""
    if id(thing) in seen:
        return 0
    seen[id(thing)] = thing
    if isinstance(thing, (mx.array, np.ndarray)):
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(bytes_held(x, seen) for x in thing.values())
    if isinstance(thing, (list, tuple, set)):
        return sum(bytes_held(x, seen) for x in thing)
    if isinstance(thing, (str, bytes, int, float, type(None), type)):
        return 0
    slots = [getattr(thing, name, None) for c in type(thing).__mro__ for name in getattr(c, "__slots__", ())]
    return sum(bytes_held(x, seen) for x in list(getattr(thing, "__dict__", {}).values()) + slots)


def caches_of(model, method):
    from mlx_lm.models.cache import make_prompt_cache
    from veloxquant_mlx import KVCacheBuilder, KVCacheConfig

    if method == "f16":
        return make_prompt_cache(model)
    name, _, words = method.partition(":")
    fields = {}
    for word in filter(None, words.split(",")):
        key, _, value = word.partition("=")
        fields[key] = int(value) if value.lstrip("-").isdigit() else value
    return KVCacheBuilder.for_model(model, KVCacheConfig(method=name, seed=42, **fields))


def active_bytes():
    """What MLX's allocator has given out and not got back."""
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def run(folder, ids, skip, method, nll_path):
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(folder))
    mx.eval(model.parameters())
    mx.eval(model(mx.array(ids[None, :8]))[0, -1])      # what is set up at the first use
    before = active_bytes()
    caches = caches_of(model, method)
    start = time.perf_counter()
    logits = model(mx.array(ids[None, :skip]), cache=caches)[0, -1]
    mx.eval(logits)
    prompt = time.perf_counter() - start
    nll, took = [], []
    for i in range(skip, len(ids)):
        wide = logits.astype(mx.float32)
        nll.append((mx.logsumexp(wide) - wide[int(ids[i])]).item())
        start = time.perf_counter()
        logits = model(mx.array(ids[None, i:i + 1]), cache=caches)[0, -1]
        mx.eval(logits)
        took.append(time.perf_counter() - start)
    np.array(nll, dtype=np.float64).tofile(nll_path)
    del logits, wide
    return {"held_bytes": bytes_held(caches, {}), "active_bytes": active_bytes() - before, "rows": len(ids),
            "prompt_tps": skip / prompt, "decode_seconds": took}


def main():
    if sys.argv[1:2] == ["convert"] and len(sys.argv) == 4:
        convert(*sys.argv[2:])
        return 0
    if sys.argv[1:2] != ["run"] or len(sys.argv) != 7:
        print(__doc__, file=sys.stderr)
        return 2
    folder, ids, skip, method, nll_path = sys.argv[2:]
    try:
        answer = run(folder, np.fromfile(ids, dtype=np.int32), int(skip), method, nll_path)
    except Exception as error:      # whatever its code raises: a cache that fails is a result too
        answer = {"error": "%s: %s" % (type(error).__name__, str(error).split("\n")[0])}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
