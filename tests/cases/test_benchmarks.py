"""Benchmarks and the lies that they must not tell: a machine that does other things is marked or refused, by programs that the
user runs. (Repeated inputs: unit/measure.)"""
import json
import os
import subprocess
import sys
import tempfile

BENCH, PROGRAM, MODEL = sys.argv[1:4]
SHORT = ["--depth", "64", "--layers", "2", "--rounds", "3", "--prompt", "32"]
BURN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
failed = 0


def case(name, ok, saw=""):
    global failed
    failed += not ok
    print("%s  %s%s" % ("ok    " if ok else "FAILED", name, "" if ok else ": saw %s" % (saw,)))


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)


burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(os.cpu_count() or 1)]
try:
    r = run(BENCH, *SHORT, "int8")
    case("bench_attention beside other programs: the mark", r.returncode == 0 and "not quiet: other programs took" in r.stdout, r)
    case("few rounds: no verdict but `not distinguishable`", "not distinguishable" in r.stdout and "faster" not in r.stdout, r)
    r = run(BENCH, *SHORT, "--need-quiet", "int8")
    case("--need-quiet: refused, with what was seen and the limits", r.returncode == 1 and "the machine was not quiet" in r.stderr and
         "(limit 0.10)" in r.stderr, r)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "bench.json")
        r = run(PROGRAM, "bench", "-m", MODEL, "-p", "16", "-n", "8", "-d", "0", "-r", "3", "--kv", "f16", "--json", out)
        text = open(out).read() if os.path.exists(out) else "{}"
        case("veloxquant bench beside other programs: the mark in the results", r.returncode == 0 and '"quiet": false' in text and
             '"others_cpus"' in text and json.loads(text)["schema"] == 1, (r, text[:400]))
        case("and for people", "quiet" in r.stdout + r.stderr, r)
finally:
    for burner in burners:
        burner.kill()
        burner.wait()

print("%d failed" % failed)
sys.exit(1 if failed else 0)
