#!/usr/bin/env python3
"""The program as a person or a script meets it: messages, exit statuses, streams, signals.

usage: test_cli.py PROGRAM TOYS [MODEL]
TOYS is tests/cases; MODEL a real model, whose cases are skipped when it is not there.  Every case prints one line.
"""
import json
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, TOYS = sys.argv[1], sys.argv[2]
REAL = sys.argv[3] if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else None
BASE = os.path.join(TOYS, "gguf_ok", "base_valid.gguf")
HEADS = os.path.join(TOYS, "gguf_heads", "hd64_h2_kv1.gguf")
ENV = dict(os.environ, LC_ALL="C.UTF-8")
passed, failed, skipped = 0, 0, 0


def case(name, condition, seen=""):
    global passed, failed
    if condition:
        passed += 1
        print("ok      " + name)
    else:
        failed += 1
        print("FAILED  %s\n        %s" % (name, str(seen)[:2000]))


def skip(name):
    global skipped
    skipped += 1
    print("SKIP    %s (no model)" % name)


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __str__(self):
        return "status %s, out %r, err %r" % (self.status, self.out[-400:], self.err[-800:])


def run(*words, data=b"", timeout=100, stdout=subprocess.PIPE, env=None, preexec=None):
    p = subprocess.run([PROGRAM, *words], input=data, stdout=stdout, stderr=subprocess.PIPE, timeout=timeout,
                       env=env or ENV, preexec_fn=preexec)
    return Result(p.returncode, p.stdout if p.stdout is not None else b"", p.stderr)


def fails(name, words, status, *needles, **more):
    """Ends with `status`, one line on standard error that holds the needles, nothing on standard output."""
    r = run(*words, **more)
    lines = r.err.decode("utf-8", "replace").splitlines()
    first = lines[0] if lines else ""
    good = (r.status == status and r.out == b"" and first.startswith("veloxquant: ") and
            len(lines) <= (2 if status == 2 else 1) and all(n in first for n in needles))
    case(name, good, r)


def generate(*words, model=BASE, **more):
    return run("generate", "-m", model, *words, **more)


# ---- usage ----
def usage():
    r = run()
    case("no command: help on standard error, status 2", r.status == 2 and b"Commands:" in r.err and not r.out, r)
    r = run("--help")
    case("--help: status 0, on standard output", r.status == 0 and b"Commands:" in r.out and not r.err, r)
    r = run("--version")
    case("--version", r.status == 0 and r.out.startswith(b"veloxquant ") and not r.err, r)
    names = ["generate", "chat", "perplexity", "bench", "tokenize", "inspect", "methods"]
    for name in names:
        a, b = run(name, "--help"), run("help", name)
        text = a.out.decode()
        case("help of %s: examples, at most 100 columns" % name,
             a.status == 0 and a.out == b.out and "Examples:" in text and max(map(len, text.splitlines())) <= 100, a)
    for name in names:
        if name not in ("methods", "inspect"):
            fails(name + " without a model", [name, "-p", "x"] if name in ("generate", "tokenize") else
                  [name] + (["-f", "x"] if name == "perplexity" else []), 2, "no model")
    fails("unknown command", ["generat"], 2, "unknown command 'generat'", "did you mean 'generate'?")
    fails("unknown option", ["generate", "--tmp", "1"], 2, "unknown option --tmp", "did you mean --temp?")
    fails("option out of range", ["generate", "-m", BASE, "--top-p", "1.5"], 2, "--top-p: 1.5, must be 0 to 1")
    fails("option is no number", ["generate", "-m", BASE, "-n", "many"], 2, "'many' is not a whole number")
    fails("option without its value", ["generate", "-m"], 2, "--model needs a value")
    fails("two prompts", ["generate", "-m", BASE, "-p", "a", "-f", "b"], 2, "both -p and -f")
    fails("unknown cache method", ["generate", "-m", BASE, "-p", "a", "--kv", "nonsense"], 2, "nonsense")
    fails("cache option out of range", ["generate", "-m", BASE, "-p", "a", "--kv", "kivi:bits=99"], 2, "bits", "99")
    fails("empty stop string", ["generate", "-m", BASE, "-p", "a", "--stop", ""], 2, "stop string 1 is empty")
    fails("unknown method listed", ["methods", "f61"], 2, "did you mean 'f16'?")
    r = run("methods", "--head-size", "64")
    case("methods lists f16 at 16 bits", r.status == 0 and b"f16" in r.out and b"16.000" in r.out, r)


# ---- evaluations and reports ----
def reports(folder):
    r = run("eval", "--help")
    case("eval --help lists the measurements", r.status == 0 and b"perplexity" in r.out and b"needle" in r.out, r)
    for name in ("perplexity", "needle", "recall", "attention-rank", "anisotropy"):
        r = run("eval", name, "--help")
        text = r.out.decode()
        case("help of eval %s: examples, at most 100 columns" % name,
             r.status == 0 and "Examples:" in text and max(map(len, text.splitlines())) <= 100, r)
        fails("eval %s without a text" % name, ["eval", name, "-m", BASE], 2, "no text")
    fails("unknown measurement", ["eval", "needles"], 2, "unknown measurement 'needles'", "did you mean 'needle'?")

    prose, measured = os.path.join(folder, "prose.txt"), os.path.join(folder, "measured.json")
    with open(prose, "w") as f:
        f.write("It was a cold day and nobody in the town by the sea had slept. The fishermen mended nets, the baker lit "
                "his oven, and a child asked why the gulls were silent. Up the hill an old clockmaker wrote to his sister.")
    r = run("eval", "perplexity", "-m", HEADS, "-f", prose, "-c", "64", "--windows", "2", "--evict", "none", "--evict",
            "streaming:budget=8,every=4", "--json", measured)
    rows = []
    if r.status == 0:
        with open(measured) as f:
            data = json.load(f)
        rows = data["rows"]
    case("eval perplexity: every policy beside the reference",
         [row["evict"] for row in rows] == ["none", "streaming:budget=8,every=4"] and rows[0]["ppl_ratio"] == [1, 1, 1] and
         rows[0]["kl"][0] == 0 and rows[1]["kl"][0] > 0 and rows[1]["rows_per_head"] < 13 < rows[0]["rows_per_head"] and
         data["command"].startswith("veloxquant eval perplexity -m"), (r, rows))
    r = run("eval", "needle", "-m", HEADS, "-f", prose)
    case("eval needle: a vocabulary without words is refused", r.status == 1 and b"at least 8 are needed" in r.err, r)

    results = os.path.join(folder, "results.json")
    rows = [{"kind": "perplexity", "model": "toy & <co>", "kv": "f16", "evict": "snapkv:budget=%g%%" % b,
             "ppl_ratio": [1 + 1 / b, 1 + 0.9 / b, 1 + 1.1 / b]} for b in (50, 25, 12.5)]
    rows += [{"kind": "needle", "model": "toy", "kv": "f16", "evict": "none", "length": n, "depth": d,
              "exact": 0.5, "chosen": 0.75} for n in (64, 128) for d in (0, 50)]
    rows += [{"model": "toy", "system": "veloxquant", "kv": "f16", "threads": 1, "depth": 0,
              "decode_tps": {"median": 9, "q1": 8, "q3": 10}, "prompt_tps": 80}]
    with open(results, "w") as f:
        json.dump({"schema": 1, "command": "made by hand", "rows": rows}, f)
    out = os.path.join(folder, "page")
    fails("report without a folder", ["report", results], 2, "no folder")
    fails("report of what is no results file", ["report", os.path.join(TOYS, "gguf_bad", "index.json"), "-o", out], 1,
          "not a results file")
    with open(os.path.join(folder, "empty.json"), "w") as f:
        f.write('{"rows": []}')
    r = run("report", os.path.join(folder, "empty.json"), "-o", out)
    case("report of nothing", r.status == 1 and b"no row of these files" in r.err, r)
    fails("report without gnuplot", ["report", results, "-o", out], 1, "gnuplot is not installed: apt-get install",
          env=dict(ENV, PATH=folder))
    if not shutil.which("gnuplot"):
        global skipped
        skipped += 1
        print("SKIP    report's figures (no gnuplot)")
        return
    r = run("report", results, "-o", out)
    names = ["eviction-toy-co", "needle-chosen-toy-results-json", "needle-exact-toy-results-json", "throughput-toy-1-thread-results-json"]
    pictures = [os.path.join(out, n + e) for n in names for e in (".png", ".svg")]
    case("report draws each figure twice", r.status == 0 and all(os.path.getsize(p) > 2000 for p in pictures), r)
    with open(os.path.join(out, "index.html")) as f:
        page = f.read()
    case("the page holds pictures, numbers and the command, and loads nothing",
         page.count("data:image/svg+xml;base64,") == 5 and "1.0400" not in page and "1.040" in page and
         "made by hand" in page and "toy &amp; &lt;co&gt;" in page and "<co>" not in page and
         "http" not in page and "<script" not in page, page[:500])


# ---- files ----
def files(folder):
    missing = os.path.join(folder, "missing.gguf")
    for words in (["generate", "-m", missing, "-p", "a"], ["tokenize", "-m", missing, "-p", "a"],
                  ["inspect", missing], ["chat", "-m", missing], ["bench", "-m", missing],
                  ["perplexity", "-m", missing, "-f", __file__]):
        fails("missing file: " + words[0], words, 1, missing, "No such file")
    fails("a folder as the model", ["generate", "-m", folder, "-p", "a"], 1, folder)
    with open(os.path.join(TOYS, "gguf_bad", "index.json")) as f:
        index = json.load(f)
    n, odd = 0, []
    for entry in index:
        path = os.path.join(TOYS, "gguf_bad", entry["file"])
        if not os.path.exists(path):
            continue
        r = generate("-p", "a", "-n", "1", model=path, timeout=60)
        n += 1
        if r.status != 1 or r.out or not r.err.startswith(b"veloxquant: " + path.encode()) or r.err.count(b"\n") != 1:
            odd.append((entry["file"], str(r)))
    case("each of %d bad files: one line with its name, status 1" % n, n > 40 and not odd, odd)
    n, odd = 0, []
    for name in sorted(os.listdir(os.path.join(TOYS, "gguf_ok"))):
        if name.endswith(".gguf") and "metadata_only" not in name:
            r = generate("-p", "a", "-n", "2", "--temp", "0", model=os.path.join(TOYS, "gguf_ok", name))
            n += 1
            if r.status != 0:
                odd.append((name, str(r)))
    case("each of %d unusual but valid files runs" % n, n >= 8 and not odd, odd)
    only = os.path.join(TOYS, "gguf_ok", "ok5_metadata_only.gguf")
    r = run("inspect", only)
    case("inspect of a file without weights", r.status == 0 and b"cannot run it" in r.out, r)
    r = run("tokenize", "-m", only, "-p", "ab")
    case("tokenize with a file without weights", r.status == 0 and r.out.strip(), r)
    fails("generate with a file without weights", ["generate", "-m", only, "-p", "a"], 1, only, "token_embd")
    r = run("inspect", BASE, "--json")
    case("inspect --json parses", r.status == 0 and json.loads(r.out)["tensors"], r)
    fails("inspect of an unknown key", ["inspect", BASE, "--metadata", "no.such"], 1, "no.such")
    fails("missing prompt file", ["generate", "-m", BASE, "-f", missing], 1, missing)


# ---- prompts ----
def prompts():
    r = generate("-p", "", "-n", "2")
    case("empty prompt starts from a token and says so", r.status == 0 and b"the prompt is empty" in r.err, r)
    r = generate("-n", "2", data=b"")
    case("empty standard input is an empty prompt", r.status == 0 and b"the prompt is empty" in r.err, r)
    r = generate("-p", "ab", "-n", "0")
    case("-n 0 evaluates and prints nothing", r.status == 0 and r.out == b"" and b" 0 new" in r.err, r)
    case("-n 0: no nan in the summary", b"nan" not in r.err and b"inf" not in r.err, r)
    r = generate("-p", "", "-n", "0")
    case("empty prompt and -n 0", r.status == 0 and r.out == b"" and b"nan" not in r.err, r)
    r = generate("-n", "2", data=b"ab\n")
    s = generate("-p", "ab", "-n", "2", "--seed", "1")
    case("a piped prompt loses one line end", r.status == 0 and
         r.err.split(b"tokens")[0] == s.err.split(b"tokens")[0], (r, s))

    # how many tokens a text has decides what fits
    n = int(run("tokenize", "-m", BASE, "-p", "a" * 64, "--count").out)
    text = "a" * 64
    fails("prompt longer than the context", ["generate", "-m", BASE, "-p", text, "-c", str(n - 1)], 1,
          "the prompt has %d tokens" % n, "the context %d" % (n - 1))
    r = generate("-p", text, "-c", str(n), "-n", "5", "--ignore-eos")
    case("prompt as long as the context: one token more", r.status == 0 and b" 1 new" in r.err and
         b"context full" in r.err, r)
    r = generate("-p", text, "-c", str(n + 3), "-n", "100", "--ignore-eos")
    case("context runs out mid-way", r.status == 0 and b" 4 new" in r.err and b"context full" in r.err, r)
    r = generate("-p", text, "-c", str(n + 3), "-n", "-1", "--ignore-eos")
    case("-n -1 ends with the context", r.status == 0 and b" 4 new" in r.err, r)


# ---- output ----
def inputs_stay(folder):
    """An output that is an input, also by another name, would destroy it: nothing is written."""
    mine, link, text = (os.path.join(folder, n) for n in ("mine.gguf", "link.gguf", "text.txt"))
    shutil.copy(BASE, mine)
    os.symlink(mine, link)
    with open(text, "w") as f:
        f.write("abc " * 400)
    with open(BASE, "rb") as f:
        before = f.read()
    for words in (["quantize", mine, link], ["quantize", mine, text, "--feedback", text], ["calibrate", mine, "--text", text, "-o", link],
                  ["calibrate", mine, "--text", text, "-o", text], ["plan", "-m", mine, "--kv-bits", "3", "-o", link],
                  ["generate", "-m", mine, "-p", "ab", "-n", "2", "--save-cache", link]):
        fails("%s onto its own input" % words[0], words, 2, "would be overwritten")
    with open(mine, "rb") as f, open(text) as g:
        case("inputs are as they were", f.read() == before and g.read() == "abc " * 400)


def small_stacks():
    def limit(soft, hard):
        return lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft << 10, hard << 10))

    r = run("generate", "-m", BASE, "-p", "abc", "-n", "2", preexec=limit(512, 8192))
    case("a small stack that may grow", r.status == 0, r)
    fails("a small stack that may not", ["generate", "-m", BASE, "-p", "abc", "-n", "2"], 1, "512 KiB", "2048", preexec=limit(512, 512))


def outputs(folder):
    for words in (["generate", "-m", BASE, "-p", "a", "-n", "8", "--ignore-eos"], ["inspect", BASE], ["methods"],
                  ["--help"], ["generate", "--help"], ["tokenize", "-m", BASE, "-p", "ab"], ["help", "chat"]):
        with open("/dev/full", "wb") as full:
            r = run(*words, stdout=full)
        case("/dev/full: " + " ".join(os.path.basename(w) for w in words[:2]),
             r.status == 1 and b"standard output: No space left on device" in r.err, r)
    cache = os.path.join(folder, "no", "such", "cache.vq")
    r = generate("-p", "ab", "-n", "2", "--save-cache", cache)
    case("unwritable cache file", r.status == 1 and cache.encode() in r.err, r)
    r = generate("-p", "ab", "-n", "2", "--save-cache", "/dev/full")
    case("cache to a full disk", r.status == 1 and b"/dev/full" in r.err and b"No space" in r.err, r)
    report = os.path.join(folder, "no", "report.json")
    r = run("bench", "-m", BASE, "-p", "4", "-n", "2", "-d", "0", "-r", "1", "--json", report)
    case("unwritable report", r.status == 1 and report.encode() in r.err, r)
    r = run("bench", "-m", BASE, "-p", "4", "-n", "2", "-d", "0", "-r", "1", "--json", "/dev/full")
    case("report to a full disk", r.status == 1 and b"/dev/full" in r.err, r)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    cache = os.path.join(folder, "cut.vq")
    r = generate("-p", "ab" * 40, "-n", "2", "--save-cache", cache, preexec=limit)
    case("a cache that is cut short leaves no file", r.status == 1 and os.listdir(folder) == [], (r, os.listdir(folder)))

    p = subprocess.Popen([PROGRAM, "generate", "-m", BASE, "-p", "a", "-n", "-1", "-c", "100000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENV)
    p.stdout.read(1)
    p.stdout.close()
    err = p.stderr.read()
    status = p.wait(timeout=60)
    p.stderr.close()
    case("the reader goes away: quiet end", status == -signal.SIGPIPE and b"note: a context of 100000 tokens" in err and
         err.count(b"\n") == 1, (status, err))


# ---- signals ----
def wait_for(stream, want, seconds=60):
    seen, end = b"", time.time() + seconds
    while want not in seen and time.time() < end:
        if select.select([stream], [], [], 0.2)[0]:
            more = os.read(stream.fileno(), 65536)
            if not more:
                break
            seen += more
    return seen


def signals(folder):
    for model in (BASE, REAL):
        if not model:
            skip("Ctrl-C with the real model")
            continue
        name = os.path.basename(model)
        p = subprocess.Popen([PROGRAM, "generate", "-m", model, "-p", "a", "-n", "-1", "-c", "20000", "--ignore-eos",
                              "--seed", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                             env=ENV, bufsize=0)
        first = os.read(p.stdout.fileno(), 65536)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=100)
        case("Ctrl-C during generate: text, summary, status 130: " + name,
             p.returncode == 130 and first and b"stopped]" in err, (p.returncode, first, err))
        p = subprocess.Popen([PROGRAM, "perplexity", "-m", model, "-f", __file__, "-c", "16"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENV)
        time.sleep(2 if model == REAL else 0.1)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=100)
        case("Ctrl-C during perplexity: what there is so far, status 130 (a toy may be done): " + name,
             (p.returncode == 130 and b"ppl so far" in err) or (model == BASE and p.returncode in (0, -2)),
             (p.returncode, out, err))

    p = subprocess.Popen([PROGRAM, "bench", "-m", HEADS, "-p", "4", "-n", "2", "-d", "64", "-r", "1000", "-t", "1"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                         env=dict(ENV, TMPDIR=folder))
    end = time.time() + 30
    while not os.listdir(folder) and p.poll() is None and time.time() < end:
        time.sleep(0.001)
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    case("SIGTERM during bench: the figures so far, no temporary file, status 143 (or it was done)",
         p.returncode in (143, 0) and b"decode 2" in out and os.listdir(folder) == [],
         (p.returncode, out, err, os.listdir(folder)))

    # a model that shrinks while it is mapped
    copy = os.path.join(folder, "shrinks.gguf")
    with open(BASE, "rb") as f, open(copy, "wb") as g:
        g.write(f.read())
    p = subprocess.Popen([PROGRAM, "generate", "-m", copy, "-p", "a", "-n", "-1", "-c", "2000000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENV, bufsize=0)
    os.read(p.stdout.fileno(), 1)
    os.truncate(copy, 4096)
    try:
        out, err = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
    case("the model file shrinks: message, status 1", p.returncode == 1 and
         (b"cut while in use" in err or b"changed while it was mapped" in err) and copy.encode() in err,
         (p.returncode, err[-300:]))
    os.unlink(copy)


# ---- text ----
def texts():
    whole = generate("-p", "ab", "-n", "40", "--temp", "0", "--ignore-eos", "-q")
    case("greedy text", whole.status == 0 and len(whole.out) > 4, whole)
    for words in (["-b", "1"], ["-b", "3"], ["-t", "1"], ["-t", "2"], ["-t", "5", "-b", "2"]):
        r = generate("-p", "ab" * 20, "-n", "30", "--seed", "3", "--temp", "1.5", "--ignore-eos", "-q", *words)
        s = generate("-p", "ab" * 20, "-n", "30", "--seed", "3", "--temp", "1.5", "--ignore-eos", "-q")
        case("same seed, same text with " + " ".join(words), r.status == 0 and r.out == s.out and s.out, (r, s))
    r = generate("-p", "ab", "-n", "40", "--seed", "4", "--temp", "1.5", "--ignore-eos", "-q")
    s = generate("-p", "ab", "-n", "40", "--seed", "5", "--temp", "1.5", "--ignore-eos", "-q")
    case("another seed, another text", r.out != s.out, (r, s))

    text = whole.out.decode()
    for start, length in ((1, 1), (2, 2), (3, 3), (5, 2)):
        stop = text[start:start + length]
        if len(stop) == length:
            want = text[:text.index(stop)].encode()
            r = generate("-p", "ab", "-n", "40", "--temp", "0", "--ignore-eos", "--stop", stop)
            case("text ends just before %r" % stop, r.out == want and b"stop string" in r.err, (r, want))
    r = generate("-p", "ab", "-n", "40", "--temp", "0", "--ignore-eos", "-q", "--stop", text[2:6] + "\x01never")
    case("a stop string that never comes holds nothing back", r.out == whole.out, (r, whole))

    for model in (BASE, HEADS):
        results = []
        for words in (["-b", "1", "-t", "1"], ["-b", "7", "-t", "2"], ["-b", "64", "-t", "1"]):
            r = run("perplexity", "-m", model, "-f", __file__, "-c", "64", "--windows", "3", "--json", *words)
            got = json.loads(r.out)
            results.append((r.status, got["nll"], got["ppl"], got["nll_error"], got["tokens"]))
        case("perplexity does not depend on passes and threads: " + os.path.basename(model),
             results[0][0] == 0 and results.count(results[0]) == 3 and results[0][4] == 3 * 48, results)
    r = run("perplexity", "-m", BASE, "-f", __file__, "-c", "64", "--windows", "2", "--reference", "f32", "--kv", "f32",
            "--json")
    got = json.loads(r.out)
    case("a cache against itself: ratio 1, KL 0", r.status == 0 and got["ppl_ratio"]["value"] == 1 and
         abs(got["kl"]["value"]) < 1e-6 and got["same_top"]["value"] == 1, r)
    words = ["perplexity", "-m", BASE, "-f", __file__, "-c", "64", "--windows", "2", "--exact", "--residual", "0"]
    one = run(*words, "--reference", "f16", "--kv", "int8+f32", "--json")
    many = run(*words, "--kv", "f16", "--kv", "int8+f32", "--kv", "turboquant-mse:bits=2", "--json")
    case("several --kv: f16 is the reference, and each figure is that of a run of its own", one.status == 0 and many.status == 0 and
         [m["cache"]["method"] for m in json.loads(many.out)["methods"]] ==
         ["f16", "int8+f32", "turboquant-mse:bits=2"] and
         json.loads(many.out)["methods"][0]["ppl_ratio"]["value"] == 1 and
         json.loads(many.out)["methods"][1]["ppl_ratio"] == json.loads(one.out)["ppl_ratio"] and
         json.loads(many.out)["methods"][1]["nll"] == json.loads(one.out)["nll"], (one.err, many.err, many.out))
    r = run(*words, "--kv", "f16", "--kv", "int8")
    case("several --kv: a line each", r.status == 0 and b"\nint8 " in r.out and b"reference" in r.out, (r.out, r.err))
    fails("several --kv with --kv-keys", words + ["--kv", "f16", "--kv", "int8", "--kv-keys", "f32"], 2, "KEYS+VALUES")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as f:
        looped = f.name
        f.write("Twice two is four, and four is two and two. " * 200)
    fails("a looped text", ["perplexity", "-m", BASE, "-f", looped, "-c", "64"], 1, "repeats itself")
    r = run("perplexity", "-m", BASE, "-f", looped, "-c", "64", "--windows", "2", "--any-text")
    case("a looped text with --any-text", r.status == 0, r)
    os.unlink(looped)
    fails("text shorter than a window", ["perplexity", "-m", BASE, "-f", __file__, "-c", "1000000"], 1, "one window takes 1000000")
    fails("--skip leaves nothing", ["perplexity", "-m", BASE, "-f", __file__, "-c", "16", "--skip", "16"], 2,
          "must be 0 to 15")
    fails("--min-tokens", ["perplexity", "-m", BASE, "-f", __file__, "-c", "16", "--windows", "1", "--min-tokens",
                           "100"], 1, "100")


# ---- saved caches ----
def caches(folder):
    cache = os.path.join(folder, "cache.vq")
    whole = generate("-p", "abc", "-n", "24", "--temp", "0", "--ignore-eos", "-q")
    a = generate("-p", "abc", "-n", "10", "--temp", "0", "--ignore-eos", "-q", "--save-cache", cache)
    b = generate("-n", "14", "--temp", "0", "--ignore-eos", "-q", "--load-cache", cache, data=b"")
    case("a saved text goes on as if nothing had happened", a.status == 0 and b.status == 0 and
         a.out + b.out == whole.out, (a, b, whole))
    r = generate("-p", "abcd", "-n", "8", "--temp", "0", "--ignore-eos", "--load-cache", cache)
    s = generate("-p", "abcd", "-n", "8", "--temp", "0", "--ignore-eos")
    case("what a prompt has in common with a saved one is reused", r.status == 0 and r.out == s.out and
         b"more from the saved cache" in r.err, (r, s))
    fails("a cache of another method", ["generate", "-m", BASE, "-p", "abc", "--kv", "f32", "--load-cache", cache], 1,
          cache)
    other = os.path.join(TOYS, "gguf_ok", "ok6_tied_embeddings.gguf")
    fails("a cache of another model", ["generate", "-m", other, "-p", "abc", "--load-cache", cache], 1, cache)
    fails("a cache larger than the context", ["generate", "-m", BASE, "-p", "abc", "-c", "4", "--load-cache", cache], 1,
          cache, "4")
    with open(cache, "rb") as f:
        data = bytearray(f.read())
    case("nobody may write to a saved cache", os.stat(cache).st_mode & 0o222 == 0, oct(os.stat(cache).st_mode))
    os.chmod(cache, 0o600)
    odd = []
    for at in list(range(0, 64, 3)) + list(range(64, len(data), max(1, len(data) // 40))):
        bad = bytearray(data)
        bad[at] ^= 0x40
        with open(cache, "wb") as f:
            f.write(bad)
        r = generate("-p", "abc", "-n", "2", "--load-cache", cache)
        if not (r.status == 1 and r.err.startswith(b"veloxquant: " + cache.encode())):
            odd.append((at, str(r)))
    case("a changed byte anywhere in a saved cache is noticed", not odd, odd[:3])
    odd = []
    for n in [0, 1, 8, 23, 24, 30, 64, 100, len(data) // 2, len(data) - 1]:
        with open(cache, "wb") as f:
            f.write(data[:n])
        r = generate("-p", "abc", "-n", "2", "--load-cache", cache)
        if not (r.status == 1 and r.err.startswith(b"veloxquant: " + cache.encode())):
            odd.append((n, str(r)))
    case("a saved cache that is cut short is noticed", not odd, odd[:3])
    os.unlink(cache)


# ---- speed ----
def bench(folder):
    report = os.path.join(folder, "report.json")
    r = run("bench", "-m", HEADS, "-p", "16", "-n", "4", "-d", "0,70", "-r", "3", "-t", "1,2", "--kv", "f16", "--kv",
            "f32", "--json", report)
    with open(report) as f:
        text = f.read()
    got = json.loads(text)
    case("bench: a row for each depth, method and thread count, each with its samples", r.status == 0 and
         len(got["rows"]) == 8 and all(len(x["decode_tps"]["samples"]) == 3 for x in got["rows"]) and
         got["machine"]["cores"] >= 1 and got["schema"] == 1 and "NaN" not in text, (r, got))
    case("bench: what three rounds can't show is not distinguishable", all(
        x["decode_against_first"]["verdict"] == "not distinguishable" for x in got["rows"]), got)
    case("bench: percentiles of a token's time ascend", all(
        0 < x["token_ms"]["p50"] <= x["token_ms"]["p90"] <= x["token_ms"]["p99"] for x in got["rows"]), got)
    r = run("bench", "-m", HEADS, "-p", "8", "-n", "0", "-d", "0", "-r", "1", "--json", "-")
    got = json.loads(r.out)
    case("bench: what is not measured is null, never NaN", r.status == 0 and
         got["rows"][0]["decode_tps"] is None, r)
    fails("bench of nothing", ["bench", "-m", HEADS, "-p", "0", "-n", "0"], 2, "nothing to measure")
    os.unlink(report)


# ---- tokens ----
def tokens():
    r = run("tokenize", "-m", BASE, "-p", "abc")
    s = run("tokenize", "-m", BASE, "--decode", r.out.decode())
    case("ids and back", s.status == 0 and s.out == b"abc", (r, s))
    r = run("tokenize", "-m", BASE, data=b"abc")
    case("tokenize reads standard input", r.status == 0 and r.out.strip(), r)
    fails("an id that is none", ["tokenize", "-m", BASE, "--decode", "99999999"], 2, "must be 0 to")
    fails("an id that is no number", ["tokenize", "-m", BASE, "--decode", "1 x"], 2, "'x' is not a token id")
    r = run("tokenize", "-m", BASE, "-p", "")
    case("no text, no tokens", r.status == 0 and r.out in (b"\n", b"1\n"), r)


# ---- chat ----
def chat():
    fails("chat without a template", ["chat", "-m", BASE], 1, "--template")
    fails("unknown template", ["chat", "-m", BASE, "--template", "nonsense"], 2, "chatml")
    if not REAL:
        for name in ("chat piped", "chat keeps its cache", "chat commands", "chat context", "chat terminal"):
            skip(name)
        return
    r = run("chat", "-m", REAL, "--temp", "0", "-n", "8", data="Say hi.\n\nAgain, é😀!\n/stats\n".encode())
    case("chat piped: a message a line, answers on standard output",
         r.status == 0 and len(r.out.strip().splitlines()) >= 2 and b"last answer" in r.err, r)
    s = run("chat", "-m", REAL, "--temp", "0", "-n", "8", "-t", "1", "-b", "5", data="Say hi.\n\nAgain, é😀!".encode())
    case("chat: same answers with other passes and threads", s.status == 0 and s.out == r.out, (r, s))
    r = run("chat", "-m", REAL, "--temp", "0", "-n", "4", data=b"/help\n/nonsense\n/system Be brief.\nHi\n/reset\n/quit\nno\n")
    case("chat commands", r.status == 0 and b"/reset" in r.err and b"no command /nonsense" in r.err and
         len(r.out.strip().splitlines()) == 1, r)
    r = run("chat", "-m", REAL, "--temp", "0", "-c", "48", data=b"word " * 100 + b"\nHi\n")
    case("chat: a message that does not fit is said, the chat goes on", r.status == 1 and
         b"the context has room for 48" in r.err and r.out.strip(), r)
    leader, follower = pty.openpty()
    p = subprocess.Popen([PROGRAM, "chat", "-m", REAL, "--temp", "0", "-c", "600"], stdin=follower, stdout=follower,
                         stderr=follower, env=dict(ENV, TERM="xterm"), start_new_session=True,
                         preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
    os.close(follower)
    with os.fdopen(leader, "r+b", buffering=0) as terminal:
        seen = wait_for(terminal, b"> ")
        terminal.write(b"Count to one thousand, slowly.\r")
        seen += wait_for(terminal, b"\n", 5) + wait_for(terminal, b" ", 30)
        time.sleep(0.5)
        terminal.write(b"\x03")
        after = wait_for(terminal, b"> ", 30)
        terminal.write(b"\x03")
        try:
            status = p.wait(timeout=30)
        except subprocess.TimeoutExpired:
            p.kill()
            status = "hangs"
    case("chat on a terminal: Ctrl-C stops the answer, a second one leaves", status == 0 and b"> " in after,
         (status, seen, after))


def real():
    if not REAL:
        for name in ("real text", "real invariance", "real perplexity"):
            skip(name)
        return
    r = generate("-p", "The capital of France is", "-n", "4", "--temp", "0", model=REAL)
    case("the capital of France", r.status == 0 and b"Paris" in r.out, r)
    runs = [generate("-p", "Once upon a time there was a king who", "-n", "16", "--temp", "1", "--seed", "11", "-q",
                     *words, model=REAL) for words in ([], ["-t", "1", "-b", "3"], ["-t", "2", "-b", "1"])]
    case("real model: same seed, same text for any passes and threads", runs[0].status == 0 and runs[0].out and
         all(r.out == runs[0].out for r in runs), [str(r) for r in runs])
    results = []
    for words in (["-b", "9", "-t", "1"], ["-b", "64", "-t", "2"]):
        r = run("perplexity", "-m", REAL, "-f", __file__, "-c", "64", "--windows", "1", "--json", *words)
        results.append(json.loads(r.out)["nll"])
    case("real model: perplexity does not depend on passes and threads", results[0] == results[1], results)
    ids = run("tokenize", "-m", REAL, "-p", "").out
    case("this model adds no BOS: an empty text has no tokens", ids == b"\n", ids)
    r = generate("-p", "", "-n", "4", "--temp", "0", model=REAL)
    case("real model: empty prompt", r.status == 0 and b"the prompt is empty" in r.err, r)


def main():
    with tempfile.TemporaryDirectory() as folder:
        usage()
        with tempfile.TemporaryDirectory() as own:
            reports(own)
        files(folder)
        prompts()
        outputs(folder)
        small_stacks()
        with tempfile.TemporaryDirectory() as own:
            inputs_stay(own)
        signals(folder)
        texts()
        caches(folder)
        bench(folder)
        tokens()
        chat()
        real()
    print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    return 1 if failed or not passed else 0


sys.exit(main())
