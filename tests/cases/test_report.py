"""`veloxquant report` on what a whole evaluation leaves, on a part of it, and on rows with holes."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHES = [("f16", 16, 0), ("velox:bits=2", 2.2, 0.05), ("velox:bits=4", 4.2, 0.002), ("optimal:bits=2,calibration=/a/b.vqc", 2.1, 0.03)]
failed = 0


def case(name, ok, saw=""):
    global failed
    failed += not ok
    print("%s  %s%s" % ("ok    " if ok else "FAILED", name, "" if ok else ": saw %s" % (str(saw)[:1500],)))


def spread(x):
    return {"median": x, "q1": 0.9 * x, "q3": 1.1 * x, "samples": [0.9 * x, x, 1.1 * x]}


def rows_of(kind):
    for kv, bits, kl in CACHES:
        row = {"kind": kind, "model": MODEL, "kv": kv, "evict": "none"}
        if kind == "speed":
            for depth in (0, 4096):
                layers = {"attend_us": [1.0, 2.0], "append_us": [0.1, 0.1]}
                yield dict(row, depth=depth, threads=1, decode_tps=spread(100 / (1 + depth * bits / 65536)), first_token_seconds=None,
                           token_ms={"p50": 9, "p90": 10, "p99": 14}, attention_share=0.1, encode_share=0.01, layers=layers)
        elif kind == "perplexity":
            yield dict(row, ppl_ratio=[1 + kl, 1, 1 + 2 * kl], kl=[kl, kl / 2, 2 * kl], same_top=[1 - kl, 0, 1], packed_bits=bits, bits_per_value=20)
        elif kind == "memory":
            for n in (1024, 32768):
                yield dict(row, tokens=n, bytes=n * 1440 * bits)
        elif kind == "distortion":
            yield dict(row, layers=[kl, 2 * kl], error=kl, packed_bits=bits)
        elif kind == "generation":
            yield dict(row, completed_mean=150 - 100 * kl, distinct=[0.5, 0.7, 0.8, 0.9], same_tokens=None if kv == "f16" else 0.5,
                       same_until=None if kv == "f16" else 40, text="a <b> & so on")
        elif kind == "invariance":
            yield dict(row, what="threads 2", identical=kv != "velox:bits=4", must_be_identical=True, same_tokens=0.9, same_top=None)
        elif kind == "needle":
            yield dict(row, length=512, depth=50, exact=0.5, chosen=1)


def write(folder, name, rows, **more):
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as f:
        json.dump(dict({"schema": 1, "what": name, "date": "2026-11-30T01:00:00Z", "command": "veloxquant eval " + name,
                        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 8.0}, "rows": list(rows)}, **more), f)
    return path


def report(folder, paths, *more):
    out = os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    r = subprocess.run([PROGRAM, "report", *paths, "-o", out, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    page = ""
    if os.path.exists(os.path.join(out, "index.html")):
        with open(os.path.join(out, "index.html")) as f:
            page = f.read()
    return r, set(os.listdir(out)) if os.path.isdir(out) else set(), page


if not shutil.which("gnuplot"):
    print("SKIP    no gnuplot")
    sys.exit(77)
KINDS = ["speed", "perplexity", "memory", "distortion", "generation", "invariance", "needle"]
with tempfile.TemporaryDirectory() as folder:
    whole = [write(folder, kind, rows_of(kind)) for kind in KINDS]
    steps = [{"kind": "step", "name": "perplexity-3", "command": "veloxquant eval perplexity", "seconds": 60, "status": "failed",
              "message": "the text repeats itself"}, {"kind": "step", "name": "speed", "command": "veloxquant eval speed", "seconds": 60, "status": "done"}]
    whole.append(write(folder, "all", steps))
    r, files, page = report(folder, whole)
    case("a whole evaluation", r.returncode == 0 and not r.stderr, r)
    panels = ["throughput-smollm2-135m-1-thread", "rate-kl-smollm2-135m", "memory-smollm2-135m", "distortion-smollm2-135m",
              "finished-smollm2-135m", "sheet-smollm2-135m", "needle-chosen-smollm2-135m-needle-json"]
    case("every panel as PNG and SVG", {p + e for p in panels for e in (".png", ".svg", ".gp")} <= files, sorted(files))
    case("and all pictures in the page", page.count("data:image/svg+xml;base64,") == len([f for f in files if f.endswith(".svg")]), sorted(files))
    case("nothing is loaded", not re.search(r"(src|href)=\"(?!data:|#)", page) and "<script" not in page)
    table = page[page.index('<table class="facts">'):]
    line = re.search(r"<tr><th><code>velox:bits=2</code>.*?</tr>", table, re.S).group(0)
    cells = re.findall(r"<td>(.*?)</td>", line)
    case("a line of the table: bits, ratio, KL, same top, speed, memory, distortion, finished, same tokens",
         cells == ["2.20", "1.0500", "0.05000", "95.0 %", "87.9", "99.0", "0.0500", "145", "50 %"], cells)
    case("places that all rows share stand in the head", "4096 tokens deep" in table and "32768 tokens" in table)
    case("files of calibrations are not part of a name", "optimal:bits=2<" in page and "/a/b.vqc" not in page)
    case("a failed step is named, with why", 'class="failed">Failed: perplexity-3 (the text repeats itself)' in page)
    case("what must be the same and is not stands out", page.count('<td class="failed">no</td>') == 1)
    case("text is escaped", "a &lt;b&gt; &amp; so on" in page and "<b>" not in page)
    case("what is missing is named, with its command", "Q-Filters: anisotropy (<code>veloxquant eval anisotropy</code>)" in page)

    r, files, page = report(folder, whole[2:4])
    sheet = os.path.join(folder, "out", "sheet-smollm2-135m.gp")
    case("a part: a sheet of what there is", r.returncode == 0 and os.path.exists(sheet) and "'Memory at scale'" in open(sheet).read() and
         "'Throughput'" not in open(sheet).read(), (r, files))
    case("and the others named", "Not measured: Throughput, Quality against compression, Tokens finished" in page)

    r, files, page = report(folder, whole[:1], "--scripts")
    case("--scripts: scripts alone", r.returncode == 0 and files and all(f.endswith(".gp") for f in files), files)

    holes = [{"kind": "perplexity", "model": MODEL, "kv": "f16", "evict": "none", "ppl_ratio": None, "kl": None, "packed_bits": None},
             {"kind": "distortion", "model": MODEL, "kv": "f16", "layers": [None], "error": None},
             {"kind": "speed", "model": MODEL, "kv": "f16", "evict": "none", "depth": 0, "threads": 1, "decode_tps": None},
             {"kind": "generation", "model": MODEL, "kv": "f16", "completed_mean": 3}, {"kind": "memory", "model": MODEL, "kv": "f16"}, {}]
    r, files, page = report(folder, [write(folder, "holes", holes)])
    case("rows with holes", r.returncode == 0 and {f for f in files if f.endswith(".svg")} == {"finished-smollm2-135m.svg"}, (r, files))

    again = list(rows_of("speed")) + [dict(next(rows_of("speed")), again=True, decode_tps=spread(1))]
    r, files, page = report(folder, [write(folder, "again", again)])
    case("the control of a speed is no line of its own", r.returncode == 0 and "<td>1.0 <small>" not in page, r)

print("%d failed" % failed)
sys.exit(1 if failed else 0)
