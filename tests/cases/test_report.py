"""`veloxquant report` on what a whole evaluation leaves, on a part of it, and on rows with holes."""
import html.parser
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


class Page(html.parser.HTMLParser):
    """What is wrong with a page: tags that don't match, what readers of screens miss, links to nowhere, colours of one mode alone."""
    VOID = {"meta", "img", "br", "link", "hr", "input"}

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.ids, self.links = [], [], [], []
        self.feed(text)
        self.close()
        self.faults += ["%s is never closed" % tag for tag in self.open]
        self.faults += ["no id %s" % to for to in self.links if to not in self.ids]
        self.faults += ["id %s twice" % i for i in set(self.ids) if self.ids.count(i) > 1]

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in has:
            self.ids.append(has["id"])
        if tag == "img" and len(has.get("alt", "")) < 10:
            self.faults.append("a picture without words: %s" % has.get("alt"))
        if tag == "th" and has.get("scope") not in ("row", "col"):
            self.faults.append("a head of neither row nor column")
        if tag == "table" and "div" not in self.open[-2:]:
            self.faults.append("a table that makes a narrow page wide")
        if tag == "a":
            self.links.append(has["href"][1:])

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append("</%s> at line %d closes something else" % (tag, self.getpos()[0]))


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
    case("tags match, pictures and heads of tables are told to readers of screens", not Page(page).faults, Page(page).faults)
    case("which a broken page would not pass", len(Page("<table><tr><th>a</table><img src='x'>").faults) >= 4)
    case("it fits narrow and dark screens", 'name="viewport" content="width=device-width' in page and "prefers-color-scheme:dark" in page)
    case("machine, date and commands", all(t in page for t in ("a CPU, 2 cores, 8 GiB", "2026-11-30", "<pre>veloxquant eval speed</pre>")))
    case("nothing is loaded", not re.search(r"(src|href)=\"(?!data:|#)", page) and "<script" not in page)
    table = page[page.index('<table class="facts">'):]
    line = re.search(r"<tr><th scope=\"row\"><code>velox:bits=2</code>.*?</tr>", table, re.S).group(0)
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

    # Rows as scripts of bench/ write them.
    def rated(model, method, bits, kl, ratio):
        return {"model": model, "method": method, "bits_per_value_at": {"1024": bits}, "bits_per_value": bits - 0.1, "kl": [kl, kl / 2, 2 * kl],
                "ppl_ratio": [ratio, ratio - 0.001, ratio + 0.001]}
    rates = [rated(m, "%s:bits=%d" % (n, b), b + 0.2, f * 4.0 ** -b, 1 + f * 4.0 ** -b) for m in ("one", "two") for b in (2, 3, 4)
             for n, f in (("optimal", 0.3), ("velox", 0.8), ("trellis", 0.5), ("kivi", 3))] + [rated("one", "int8", 18.25, 1e-5, 1)]
    bench = [write(folder, "rates", rates),
             write(folder, "peaks", [{"codec": "velox:bits=2", "operation": o, "from": f, "d": 64, "queries": 3, "share_of_bandwidth": 0.5,
                                      "share_of_products": 0.25} for o in ("score", "mix") for f in ("cache", "memory")]),
             write(folder, "bound", [{"bits": b, "d": d, "db_above_bound": 0.7, "db_above_bound_scalar": 2.7} for b in (1, 2) for d in (64, 128)]),
             write(folder, "shared-out", [{"method": "velox:bits=2", "bits": how, "bits_per_value": 2.2, "kl": [0.05, 0.04, 0.06]}
                                          for how in ("equal", "by layer")], model="SmolLM2-135M"),
             write(folder, "sides", [{"model": MODEL, "method": m, "bits_per_value": 9, "kl": [0.05, 0.04, 0.06]} for m in ("velox+f16", "f16+velox")]),
             write(folder, "texts", [{"kind": k, "calibrated_on": k + ".txt", "model": MODEL, "method": "optimal:bits=2", "bits_per_value": 2,
                                      "kl": [0.05, 0.04, 0.06]} for k in ("prose", "code")]),
             write(folder, "encode", [{"method": "velox", "tokens": 512, "share": [0.04, 0.05, 0.06], "over_f16": 0.02}], model=MODEL),
             write(folder, "same", [{"model": MODEL, "ours": {"ppl": 31.1, "ppl_error": 1}, "llama.cpp": {"ppl": 31.2, "ppl_error": 1},
                                     "ratio": 0.997, "ratio_low": 0.99, "ratio_high": 1.004}]),
             write(folder, "prompts", [dict(r, prompt_attention_share=0.4, prompt_encode_share=0.03, attention_share=None)
                                       for r in rows_of("speed") if r["depth"]])]
    r, files, page = report(folder, bench)
    figures = {f[:-4] for f in files if f.endswith(".svg")}
    wanted = {"all-methods-kl", "all-methods-ppl", "peak-bandwidth-heads-of-64-3-queries", "peak-products-heads-of-64-3-queries", "bound",
              "shared-out-smollm2-135m", "sides-smollm2-135m", "calibration-text-smollm2-135m", "encode-smollm2-135m-512-tokens",
              "peer-perplexity", "prompt-share-smollm2-135m"}
    case("what scripts in bench/ measure", r.returncode == 0 and not r.stderr and wanted <= figures, (r, wanted - figures))
    case("is on the page too", all('<figure id="%s">' % f in page for f in figures) and not Page(page).faults, Page(page).faults)
    with open(os.path.join(folder, "out", "all-methods-kl.gp")) as f:
        script = f.read()
    labels = re.findall(r"^set label '([a-z0-9]+)' at graph ([\d.]+),([\d.]+) .*tc rgb '(#\w+)'$", script.split("set terminal svg")[0], re.M)
    case("every method is named once in the plot of each model", sorted(n for n, *_ in labels) == sorted(2 * ["optimal", "velox", "trellis", "kivi"]),
         labels)
    close = [(a, b) for i, a in enumerate(labels[:4]) for b in labels[:i] if abs(float(a[2]) - float(b[2])) < 0.025 and abs(float(a[1]) - float(b[1])) < 0.05]
    case("and no name lies on another", not close, close)
    case("in colours of their own", len({c for *_, c in labels}) == 4, labels)
    case("bits are those at 1,024 tokens, with every table", "<td>2.2</td>" in page and "<td>2.1</td>" not in page)
    case("what lies beyond the axis is in the table", "one &middot; int8" in page)
    case("prompts of speed measured alone", "Where the time of a prompt goes" in page and "<td>40.0</td><td>3.0</td>" in page)

    # The lie of a busy machine stays visible in the report, in the pictures as well.
    load = {"quiet": False, "others_cpus": 1.25, "steal_cpus": 0.0, "waiting": 2.0}
    paths = [write(folder, "busy", rows_of("speed"), loads=[dict(load, quiet=True), load]), write(folder, "text", rows_of("perplexity"), load=load)]
    r, files, page = report(folder, paths)
    scripts = {f: open(os.path.join(folder, "out", f)).read() for f in files if f.endswith(".gp")}
    marked = {f for f, text in scripts.items() if "measured beside other programs" in text}
    case("times from a busy machine are marked in caption, summary and picture, and nothing else is", r.returncode == 0 and
         "took 1.25 CPUs" in page and "was not quiet: busy.json.</p>" in page and "throughput-smollm2-135m-1-thread.gp" in marked and
         not [f for f in marked if f.startswith("rate")], (r, marked))
    r, files, page = report(folder, [write(folder, "busy", rows_of("speed"), loads=[dict(load, quiet=True)])])
    case("those from a quiet one are not", r.returncode == 0 and "not quiet" not in page, r)

    again = list(rows_of("speed")) + [dict(next(rows_of("speed")), again=True, decode_tps=spread(1))]
    r, files, page = report(folder, [write(folder, "again", again)])
    case("the control of a speed is no line of its own", r.returncode == 0 and "<td>1.0 <small>" not in page, r)

print("%d failed" % failed)
sys.exit(1 if failed else 0)
