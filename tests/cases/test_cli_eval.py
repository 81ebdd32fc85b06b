#!/usr/bin/env python3
"""The measurements of `veloxquant eval`: what they write, and planted lies that they must refuse.

usage: test_cli_eval.py PROGRAM TOYS [MODEL]
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, TOYS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
REAL = sys.argv[3] if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else None
HEADS = os.path.join(TOYS, "gguf_heads", "hd64_h2_kv1.gguf")
failed = 0


def case(name, condition, seen=""):
    global failed
    failed += not condition
    print(("ok      " if condition else "FAILED  ") + name + ("" if condition else "\n        %s" % (str(seen)[:3000],)))


def run(*words, **more):
    p = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, **more)
    p.text = p.stdout.decode() + p.stderr.decode()
    return p


def evaluate(name, *words):
    """(rows, process) of a measurement of the toy model."""
    p = run("eval", name, "-m", HEADS, *words, "--json", "-")
    return (json.loads(p.stdout)["rows"] if p.returncode == 0 else []), p


def prose(n):
    """n characters of words in an order that does not repeat: the toy model knows no language anyway."""
    words = ("the old sea was cold and a child asked why gulls are silent when boats come home late with empty nets; "
             "nobody knew, so she wrote it down for her brother who lived up the hill near seven tall dark trees").split()
    draw, out = random.Random(7), ""
    while len(out) < n:
        out += " ".join(draw.choice(words) for _ in range(12)).capitalize() + "." + draw.choice([" ", " ", "\n\n"])
    return out[:n]


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return path


def helps():
    names = ("all", "perplexity", "generation", "invariance", "distortion", "memory", "speed", "sharing")
    for name in names:
        r = run("eval", name, "--help")
        text = r.stdout.decode()
        case("help of eval %s: examples, at most 100 columns" % name, r.returncode == 0 and "Examples:" in text and
             max(map(len, text.splitlines())) <= 100, r.text)
    listed = run("eval", "--help").text
    case("eval --help lists them all", all("\n  %s " % n in listed for n in names), listed)
    for name in ("generation", "invariance", "distortion"):
        r = run("eval", name, "-m", HEADS)
        case("eval %s without a text: status 2" % name, r.returncode == 2 and "no text" in r.text, r.text)


def measurements(folder, text):
    rows, r = evaluate("memory", "--kv", "f16", "--kv", "int8", "--lengths", "1000,300")
    case("eval memory: lengths in order, f16 as large as its rows at least, int8 about half of that",
         [x["tokens"] for x in rows] == [300, 1000] * 2 and rows[1]["f16_bytes"] <= rows[1]["bytes"] and
         0.5 < rows[3]["bytes"] / rows[1]["bytes"] < 0.7 and rows[1]["resident_bytes"] > rows[1]["f16_bytes"] and
         rows[1]["bytes"] == sum(rows[1][k] for k in ("codes", "scales", "exact", "shared", "table")), (rows, r.text))

    rows, r = evaluate("distortion", "-f", text, "-c", "256", "--queries", "32", "--kv", "f16", "--kv", "int8", "--kv",
                       "kivi:bits=2")
    errors = [x["error"] for x in rows]
    case("eval distortion: more bits, smaller errors, one for each layer", len(errors) == 3 and
         0 < errors[0] < errors[1] < errors[2] < 1 and len(rows[0]["layers"]) == len(rows[0]["cosine"]) >= 1, (rows, r.text))
    r = run("eval", "distortion", "-m", HEADS, "-f", text, "-c", "64", "--queries", "65")
    case("more queries than tokens: status 2", r.returncode == 2 and "at most the 64 tokens" in r.text, r.text)

    texts = os.path.join(folder, "texts.json")
    words = ("-f", text, "--prompts", "3", "-p", "40", "-n", "60")
    r = run("eval", "generation", "-m", HEADS, *words, "--kv", "f16", "--json", texts)
    with open(texts) as f:
        first = json.load(f)["rows"]
    row = first[0]
    case("eval generation: tokens, loops and distinct sequences of each prompt", r.returncode == 0 and
         len(row["completed"]) == 3 and all(0 < n <= 60 for n in row["completed"]) and
         row["looped"] == sum(n < len(ids) for n, ids in zip(row["completed"], row["ids"])) and
         row["same_tokens"] is None and all(0 < d <= 1 for d in row["distinct"]) and
         row["distinct"][0] == sum(len(set(ids)) / len(ids) for ids in row["ids"]) / 3, (first, r.text))
    rows, r = evaluate("generation", *words, "--kv", "f16", "--kv", "kivi:bits=1", "--texts-of", texts)
    case("eval generation: the texts of an earlier run are the reference", len(rows) == 2 and
         rows[0]["same_tokens"] == 1 and rows[0]["ids"] == row["ids"] and 0 <= rows[1]["same_tokens"] < 1, (rows, r.text))
    r = run("eval", "generation", "-m", HEADS, *words[:-1], "61", "--texts-of", texts)
    case("texts of other prompts are refused", r.returncode == 1 and "no texts of" in r.text, r.text)

    rows, r = evaluate("invariance", "-f", text, "-p", "40", "-n", "24", "--kv", "f16", "--kv", "velox:bits=2")
    must = [x for x in rows if x["must_be_identical"]]
    case("eval invariance: threads and passes change nothing", len(must) == 8 and
         all(x["identical"] and x["same_tokens"] == 1 and x["same_top"] == 1 for x in must), (rows, r.text))

    rows, r = evaluate("speed", "-p", "40,200", "-n", "8", "-r", "3", "--kv", "f16", "--kv", "int8")
    case("eval speed: each depth and cache; percentiles ascend; shares are shares; layers have times", len(rows) == 4 and
         [x["depth"] for x in rows] == [40, 40, 200, 200] and "again_tps" in rows[0] and "again_tps" not in rows[1] and
         all(0 < x["token_ms"]["p50"] <= x["token_ms"]["p90"] <= x["token_ms"]["p99"] and
             0 < x["attention_share"] < 1 and 0 < x["encode_share"] < 1 and 0 < x["prompt_attention_share"] < 1 and
             abs(x["most_speedup"] * (1 - x["attention_share"]) - 1) < 1e-4 and
             all(t > 0 for t in x["layers"]["attend_us"] + x["layers"]["append_us"]) and
             x["process_bytes"] > x["resident_bytes"] > 0 for x in rows), (rows, r.text))
    rows, r = evaluate("speed", "-p", "300", "-n", "4", "-r", "2", "--fill", "-f", text)
    case("eval speed --fill: no prompt, no time of one", len(rows) == 1 and rows[0]["first_token_seconds"] is None and
         rows[0]["filled"] and rows[0]["decode_tps"]["median"] > 0, (rows, r.text))
    r = run("eval", "speed", "-m", HEADS, "--fill", "--evict", "snapkv:budget=25%")
    case("eval speed --fill --evict: status 2", r.returncode == 2 and "needs a prompt" in r.text, r.text)


def lies(folder, text):
    """Each is a way in which a benchmark has lied before."""
    r = run("eval", "speed", "-m", HEADS, "-p", "40", "-n", "4", "-r", "2", "--inputs", "1")
    case("lie: one input again and again", r.returncode == 1 and "a pool of 1 inputs; at least 2" in r.text, r.text)
    r = run("eval", "speed", "-m", HEADS, "-p", "40", "-n", "4", "-r", "2", "-f", text, "-f", text)
    case("lie: the same text as another input", r.returncode == 1 and "of the pool are the same bytes" in r.text, r.text)

    looped = write(os.path.join(folder, "looped.txt"), "Twice two is four, and four is two and two. " * 400)
    for words in (("perplexity",), ("eval", "perplexity")):
        r = run(*words, "-m", HEADS, "-f", looped, "-c", "128", "--windows", "3")
        case("lie: a looped text in %s" % " ".join(words), r.returncode == 1 and "the text repeats itself" in r.text, r.text)

    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)
        words = ("-m", HEADS, "-p", "200", "-n", "40", "-r", "8")
        r = run("eval", "speed", *words, "--need-quiet")
        case("lie: a benchmark beside other load (eval speed)", r.returncode == 1 and "was not quiet" in r.text, r.text)
        r = run("eval", "speed", "-m", HEADS, "-p", "30000", "-n", "0", "--need-quiet")
        case("lie: prompts read beside other load, nothing decoded", r.returncode == 1 and
             "not quiet while prompts were read" in r.text, r.text)
        r = run("eval", "speed", "-m", HEADS, "-p", "30000", "-n", "0", "--json", "-")
        case("without --need-quiet the results say it", r.returncode == 0 and
             [x["quiet"] for x in json.loads(r.stdout)["prompt_loads"]] == [False], r.text)
        r = run("bench", "-m", HEADS, "-p", "200", "-n", "40", "-r", "8", "-d", "0", "--need-quiet")
        case("lie: a benchmark beside other load (bench)", r.returncode == 1 and "was not quiet" in r.text, r.text)
        r = run("eval", "speed", *words)
        case("without --need-quiet it is said", r.returncode == 0 and "The machine was not quiet" in r.text, r.text)
    finally:
        for b in burners:
            b.kill()
            b.wait()

    evict = ("-f", text, "-c", "128", "--windows", "3", "--evict", "streaming:budget=16,every=4")
    r = run("eval", "perplexity", "-m", HEADS, *evict, "--one-pass")
    case("lie: one pass over a cache that evicts", r.returncode == 1 and "one pass over a cache that evicts" in r.text, r.text)
    one, r = evaluate("perplexity", "-f", text, "-c", "128", "--windows", "3", "--one-pass")
    rows, s = evaluate("perplexity", *evict)
    case("in generation order the policy shows", one and rows and one[0]["ppl_ratio"] == [1, 1, 1] and
         rows[0]["kl"][0] > 0 and rows[0]["rows_per_head"] < 40, (one, rows, r.text, s.text))

    other, calibration = os.path.join(TOYS, "gguf_ok", "base_valid.gguf"), os.path.join(folder, "other.vqc")
    made = run("calibrate", "-m", HEADS, "--text", text, "--tokens", "2048", "-o", calibration)
    r = run("eval", "perplexity", "-m", other, "-f", text, "-c", "64", "--windows", "1", "--calibration", calibration)
    case("lie: a calibration of another model", made.returncode == 0 and r.returncode == 1 and calibration in r.text and
         "model" in r.text, (made.text, r.text))

    if REAL:
        counting = write(os.path.join(folder, "counting.txt"), ", ".join(map(str, range(1, 1200))))
        r = run("eval", "perplexity", "-m", REAL, "-f", counting, "-c", "256", "--windows", "2")
        case("lie: a text that the model knows", r.returncode == 1 and "is not that of prose" in r.text, r.text)
    else:
        print("SKIP    lie: a text that the model knows (no model)")


def whole(folder, text):
    out = os.path.join(folder, "all")
    base = ("eval", "all", "-m", HEADS, "--text", text, "-o", out, "--kv", "f16")
    r = run("eval", "all", "-m", HEADS, cwd=folder)
    case("eval all without a text says where texts come from", r.returncode == 2 and "fetch-models" in r.text, r.text)
    r = run(*base, "--quick", "--full")
    case("eval all: quick and full", r.returncode == 2 and "both" in r.text, r.text)

    p = subprocess.Popen([PROGRAM, *base, "--kv", "nonsense"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         stdin=subprocess.DEVNULL, start_new_session=True)
    seen = [p.stdout.readline().decode() for _ in range(3)]
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=60)
    case("eval all: Ctrl-C ends it with how to go on, and leaves no halves", p.returncode == 130 and
         b"the same command goes on" in err and "[1/" in seen[1] and
         not [n for n in os.listdir(out) if n.endswith(".part")], (seen, rest, err, os.listdir(out)))

    r = run(*base, "--kv", "nonsense")
    with open(os.path.join(out, "all.json")) as f:
        data = json.load(f)
    steps = {x["name"]: x for x in data["rows"]}
    bad = sorted(n for n, x in steps.items() if x["status"] == "failed")
    # no needle in a vocabulary without words; speed has all caches in one process
    want = sorted(["distortion-nonsense", "generation-nonsense", "memory-nonsense", "needle", "perplexity-nonsense",
                   "speed", "speed-prompt"])
    case("eval all: what fails is recorded with its reason, the rest goes on", r.returncode == 1 and bad == want and
         "nonsense" in steps["memory-nonsense"]["message"] and data["n_failed"] == len(bad) and
         data["preset"] == "quick" and data["seconds"] > 0, (bad, r.text))
    done = [n for n, x in steps.items() if x["status"] in ("done", "kept")]
    files = [os.path.join(out, n + ".json") for n in done if n != "calibration"]
    case("eval all: what is done has its results", len(files) > 10 and all(json.load(open(f))["rows"] for f in files) and
         steps["calibration"]["status"] == "kept", (done, r.text))
    has_report = shutil.which("gnuplot") is not None
    case("eval all: there is a report", not has_report or os.path.getsize(os.path.join(out, "report", "index.html")) > 10000,
         r.text)

    times = {f: os.stat(f).st_mtime_ns for f in files}
    r = run(*base)
    after = {f: os.stat(f).st_mtime_ns for f in files}
    again = sorted(os.path.basename(f) for f in files if after[f] != times[f])
    case("eval all: another set of caches keeps what is there but the steps that hold all of them", r.returncode == 1 and
         again == [] and "failed" in r.text and os.path.exists(os.path.join(out, "speed.json")), (again, r.text))
    write(text, prose(60000) + "One more line.\n")
    r = run(*base)
    after = {f: os.stat(f).st_mtime_ns for f in files}
    case("eval all: another text makes everything anew", sum(after[f] != times[f] for f in files) == len(files),
         r.text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        text = write(os.path.join(folder, "prose.txt"), prose(60000))
        helps()
        measurements(folder, text)
        lies(folder, text)
        whole(folder, text)
    return 1 if failed else 0


sys.exit(main())
