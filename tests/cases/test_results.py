"""Results files and the scripts that write them: broken files are named by tools/check-results, and a machine that does other
things is seen by bench/results.py."""
import copy
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time

ROOT = sys.argv[1]
sys.dont_write_bytecode = True
failed = 0


def load(name, *path):
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(ROOT, *path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


check, results = load("check_results", "tools", "check-results"), load("results", "bench", "results.py")


def case(name, ok, saw=""):
    global failed
    failed += not ok
    print("%s  %s%s" % ("ok    " if ok else "FAILED", name, "" if ok else ": saw %s" % (saw,)))


def faults_of(text):
    faults = check.Faults()
    check.check_text(text if isinstance(text, str) else json.dumps(text), "file", faults)
    return faults.all


# ---- the schema ----
FINE = {
    "schema": 1, "what": "something that was measured", "date": "2026-11-29T10:00:00Z", "commit": "0123456789" * 4, "modified": False,
    "command": "bench/kv-speed --quick", "versions": {"compiler": "cc 12", "kernel": "6.1"},
    "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 23.5, "tiers": ["avx2"], "tier_ceiling": "none", "load_before": 0.1},
    "load": {"quiet": True, "others_cpus": 0.01},
    "rows": [{"model": "m", "decode_tps": {"median": 2.0, "q1": 1.5, "q3": 2.5, "samples": [1.0, 2.0, 3.0]}, "kl": [0.2, 0.1, 0.3]}],
}


def broken(name, expected, change):
    data = copy.deepcopy(FINE)
    change(data)
    faults = faults_of(data)
    case(name, any(expected in fault for fault in faults), faults)


case("a whole file has no faults", faults_of(FINE) == [], faults_of(FINE))
case("so has one of sections", faults_of({"speed": FINE, "quality": FINE}) == [])
for key in ("schema", "what", "date", "commit", "modified", "command", "machine", "versions", "rows"):
    data = {k: v for k, v in FINE.items() if k != key}
    case("without %s" % key, faults_of(data) != [])
broken("no load beside speeds", "what else the machine did", lambda d: d.pop("load"))
broken("an option twice", "its option ['bits'] twice", lambda d: d["rows"][0].update(kv="velox:bits=2,bits=3"))
broken("a median that is not that of its samples", "that of the samples", lambda d: d["rows"][0]["decode_tps"].update(median=2.1))
broken("quartiles without samples", "samples they come from", lambda d: d["rows"][0]["decode_tps"].pop("samples"))
broken("an interval that does not hold its value", "is not between", lambda d: d["rows"][0].update(kl=[0.4, 0.1, 0.3]))
broken("a program that is not there", "neither veloxquant nor", lambda d: d.update(command="bench/no-such-thing --quick"))
broken("a path of one machine", "a path of one machine", lambda d: d.update(command="bench/kv-speed --out /tmp/x.json"))
broken("a shortened commit", "commit is", lambda d: d.update(commit="0123456"))
broken("a row of no run", "run None of 1", lambda d: d.update(runs=[{k: v for k, v in FINE.items() if k != "rows"}]))
case("a key twice", "a key twice: rows" in faults_of('{"schema": 1, "rows": [], "rows": []}')[0])
case("NaN", "NaN is no JSON" in faults_of('{"schema": NaN}')[0])

# ---- load ----
quiet = {"wall": 0.0, "own": 0.0, "busy": 0.0, "steal": 0.0, "runnable": 0}
after = lambda **more: results.load_between([quiet, dict(quiet, wall=10.0, own=9.0, busy=9.5, **more)])
case("half a second in ten of others is quiet", after()["quiet"] and after()["others_cpus"] == 0.05, after())
case("two seconds are not", not results.load_between([quiet, dict(quiet, wall=10.0, own=9.0, busy=11.0)])["quiet"])
case("nor is a host that steals", not after(steal=0.5)["quiet"])
case("nor are programs that wait", not results.load_between([quiet, dict(quiet, wall=10.0, runnable=2)])["quiet"])

BURN = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"
child = subprocess.Popen([sys.executable, "-c", BURN])
before = results.own_seconds()
time.sleep(1.0)
own = results.own_seconds() - before
child.kill()
child.wait()
case("what a child burns is our own time", own > 0.05, own)      # it shares its core with whatever else runs

# Two that are nobody's children: started by one that ends at once.
start = "import subprocess, sys\nfor _ in range(2): print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.DEVNULL).pid)"
pids = subprocess.run([sys.executable, "-c", start, BURN], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
marks = [results.load_mark()]
time.sleep(1.5)
marks.append(results.load_mark())
seen = results.load_between(marks)
for pid in pids:
    os.kill(int(pid), 9)
case("background load is seen and said", not seen["quiet"] and seen["others_cpus"] > results.QUIET_OTHERS and
     "not quiet" in results.load_text(seen), seen)

# ---- what plans are chosen by ----
rates = load("generate_rates", "tools", "generate-rates")


def rated(model, method, kl, bits=3.0):
    return {"model": model, "method": method, "kl": [kl, kl, kl], "bits_per_value": bits}


ONE, TWO = rates.MODELS
files = {"kv-quality.json": [rated(ONE, "velox:bits=2", 0.04), rated(TWO, "velox:bits=2", 0.01), rated(ONE, "velox:bits=4", 0.0025),
                             rated(TWO, "velox:bits=4", 0.0025), rated(ONE, "alone:bits=2", 0.01)],
         "rate-quality.json": [rated(ONE, "optimal:bits=2,calibration=x", 0.16, 2.5), rated(ONE, "optimal:bits=4", 0.01, 4.5),
                               rated(TWO, "optimal:bits=1", 0.4, 1.25), rated(TWO, "optimal:bits=3", 0.04, 3.25), rated(TWO, "velox:bits=2", 0.0025)]}
rates.load = lambda name: files.get(name, [])
got = rates.measured()
near = lambda key, bits, loss: key in got and abs(got[key][0] - bits) < 1e-9 and abs(got[key][1] / loss - 1) < 1e-9
case("rates: the geometric mean over models, the later file's row counting", near(("velox", 2), 3.0, 0.01) and near(("velox", 4), 3.0, 0.0025), got)
case("rates: models that were measured at other bits meet between them", sorted(b for f, b in got if f == "optimal") == [2, 3] and
     near(("optimal", 2), (2.5 + 2.25) / 2, 0.16 ** 0.5 * (0.4 * 0.04) ** 0.25) and near(("optimal", 3), (3.5 + 3.25) / 2, 0.04), got)
case("rates: nothing of what one model was not measured with", not any(f == "alone" for f, _ in got), got)

print("%d failed" % failed)
sys.exit(1 if failed else 0)
