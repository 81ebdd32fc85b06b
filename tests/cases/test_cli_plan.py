#!/usr/bin/env python3
"""plan, recommend, --kv auto and --kv plan:FILE as a person meets them.

usage: test_cli_plan.py PROGRAM TOYS [MODEL]
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

PROGRAM, TOYS = sys.argv[1], sys.argv[2]
REAL = sys.argv[3] if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else None
BASE = os.path.join(TOYS, "gguf_ok", "base_valid.gguf")
failed = 0


def case(name, condition, seen=""):
    global failed
    failed += not condition
    print(("ok      " if condition else "FAILED  ") + name + ("" if condition else "\n        %s" % (str(seen)[:2000],)))


def run(*words):
    p = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
    p.text = p.stdout.decode() + p.stderr.decode()
    return p


def fails(name, words, status, *needles):
    r = run(*words)
    case(name, r.returncode == status and not r.stdout and r.stderr.startswith(b"veloxquant: ") and all(n in r.text for n in needles), r.text)
    return r


def generate(*words):
    return run("generate", "-m", BASE, "-p", "abc", "-n", "8", "--temp", "0", "-q", *words)


def planning(folder):
    text = os.path.join(folder, "text.txt")
    letters = random.Random(1)
    with open(text, "w") as f:
        f.write("".join(letters.choice("abcdefghijklmnopqrstuvwxyz .,") for _ in range(2000)))
    out = os.path.join(folder, "toy.plan")
    r = run("plan", "-m", BASE, "--kv-bits", "3.6", "--kv", "velox", "-c", "100", "--text", text, "--tokens", "90", "--window", "90", "-o", out)
    case("plan: what was chosen, status 0", r.returncode == 0 and out in r.text and "keys velox at" in r.text and "bits of values by layer:" in r.text,
         r.text)
    with open(out) as f:
        plan = json.load(f)
    n = plan["layers"]
    case("its file", plan["veloxquant_plan"] == 1 and len(plan["key_bits"]) == n and len(plan["value_losses"]) == n and
         all(x > 0 for row in plan["key_losses"] for x in row), plan)
    a, b = generate("--kv", "plan:" + out), generate("--kv", "plan:" + out, "-t", "3")
    case("generate with a plan", a.returncode == 0 and a.stdout and a.stdout == b.stdout, (a.text, b.text))
    again = os.path.join(folder, "again.plan")
    r = run("plan", "-m", BASE, "--kv-bits", "3.6", "--kv", "velox", "-c", "100", "--kv-losses", out, "-o", again)
    with open(out) as f, open(again) as g:
        case("the same plan from losses that were measured before", r.returncode == 0 and json.load(f) == json.load(g), r.text)
    cache = os.path.join(folder, "cache.vq")
    r = generate("--kv", "plan:" + out, "--save-cache", cache)
    s = generate("--kv", "plan:" + out, "--load-cache", cache)
    case("a saved cache with its plan", r.returncode == 0 and s.returncode == 0, (r.text, s.text))
    fails("a saved cache without it", ["generate", "-m", BASE, "-p", "abc", "--load-cache", cache], 1, cache)
    plan["key_bits"][0][0] = 1 if plan["key_bits"][0][0] != 1 else 2
    with open(again, "w") as f:
        json.dump(plan, f)
    fails("a saved cache with another plan", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:" + again, "--load-cache", cache], 1, cache,
          "layer 0, head 0: bits of keys")
    plan["model"] = "0123456789abcdef"
    with open(again, "w") as f:
        json.dump(plan, f)
    fails("a plan of another model", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:" + again], 1, again, "0123456789abcdef")
    with open(again, "w") as f:
        f.write("{")
    fails("no plan at all", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:" + again], 1, again, "is no plan")
    fails("a plan that is not there", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:/no/such"], 1, "/no/such")
    fails("a plan without a name", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:"], 2, "names no file")
    fails("plan on an empty text", ["plan", "-m", BASE, "--text", "/dev/null", "--kv-bits", "3", "-o", again], 1, "/dev/null", "0 tokens")
    fails("a plan and a method", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:" + out, "--kv-keys", "f16"], 2, "--kv-keys")
    fails("plan without a budget", ["plan", "-m", BASE, "-o", again], 2, "--kv-memory", "--kv-bits")
    fails("plan with two", ["plan", "-m", BASE, "-o", again, "--kv-bits", "3", "--kv-memory", "1M"], 2, "one of them")
    fails("plan without a file", ["plan", "-m", BASE, "--kv-bits", "3"], 2, "-o FILE")
    fails("plan for a method that is none", ["plan", "-m", BASE, "--kv-bits", "3", "--kv", "x", "-o", again], 2, "'x'")
    fails("plan for a calibrated method", ["plan", "-m", BASE, "--kv-bits", "3", "--kv", "optimal", "-o", again], 2, "veloxquant calibrate")
    r = run("plan", "-m", BASE, "--kv-bits", "3.6", "-o", again)
    case("plan without measuring", r.returncode == 0 and "key_losses" not in open(again).read(), r.text)
    fails("losses that a plan has not", ["plan", "-m", BASE, "--kv-bits", "3", "--kv-losses", again, "-o", out], 1, "--text")


def calibrated(folder):
    """A method that needs a calibration, chosen for, planned and used."""
    text, calibration, out = (os.path.join(folder, name) for name in ("book.txt", "toy.vqc", "calibrated.plan"))
    letters = random.Random(2)
    with open(text, "w") as f:
        f.write("".join(letters.choice("abcdefghijklmnopqrstuvwxyz .,") for _ in range(3000)))
    r = run("calibrate", BASE, "--text", text, "-c", "100", "-o", calibration)
    case("a calibration of the toy", r.returncode == 0, r.text)
    r = run("plan", "-m", BASE, "--kv-bits", "5", "--kv", "optimal", "-c", "100", "--calibration", calibration, "-o", out)
    case("plan for optimal", r.returncode == 0 and "keys optimal at" in r.text and "values optimal at" in r.text, r.text)
    a, b = (generate("--kv", "plan:" + out, "--calibration", calibration, "-t", t) for t in ("1", "2"))
    case("generate with it", a.returncode == 0 and a.stdout and a.stdout == b.stdout, (a.text, b.text))
    fails("not without the calibration", ["generate", "-m", BASE, "-p", "abc", "--kv", "plan:" + out], 2, "veloxquant calibrate")
    r = fails("bits that optimal cannot meet", ["plan", "-m", BASE, "--kv-bits", "0.6", "--kv", "optimal", "-c", "100", "--calibration", calibration,
                                                "-o", out], 1, "smallest possible", "keys optimal")
    r = generate("-c", "100", "--kv", "auto", "--kv-bits", "6", "--calibration", calibration)
    case("auto with a calibration", r.returncode == 0 and "--calibration FILE adds" not in r.text, r.text)
    r = run("recommend", BASE, "-c", "100", "--calibration", calibration, "--json")
    kinds = {x["kv"].partition(":")[0] for x in json.loads(r.stdout)["rows"]}
    case("recommend with a calibration", kinds == {"f16", "velox", "trellis", "optimal"}, kinds)
    r = run("recommend", BASE, "-c", "100")
    case("and without: how to get one", "veloxquant calibrate" in r.text and "optimal:" not in r.text, r.text)


def automatic():
    r = run("generate", "-m", BASE, "-p", "abc", "-n", "8", "--temp", "0", "-c", "120", "--kv", "auto", "--kv-memory", "1M")
    case("auto: the plan on standard error, the text on standard output", r.returncode == 0 and b"cache for 120 tokens within 1.00 MiB" in r.stderr and
         b"veloxquant" not in r.stdout and b"expected loss" in r.stderr, r.text)
    r = fails("a budget that cannot be met", ["generate", "-m", BASE, "-p", "abc", "-c", "120", "--kv", "auto", "--kv-memory", "1000"], 1, "1000 bytes",
              "smallest possible")
    least = int(re.search(r"takes (\d+)", r.text).group(1))
    r = generate("-c", "120", "--kv", "auto", "--kv-memory", str(least))
    case("the smallest that it names can be met", r.returncode == 0, r.text)
    fails("one byte less cannot", ["generate", "-m", BASE, "-p", "abc", "-c", "120", "--kv", "auto", "--kv-memory", str(least - 1)], 1, str(least))
    r = generate("-c", "120", "--kv", "auto", "--kv-bits", "6")
    found = re.search(r"([0-9.]+) bits a value", r.stderr.decode().replace("within 6 bits a value", ""))
    case("auto by bits", r.returncode == 0 and found and float(found.group(1)) <= 6, r.text)
    fails("bits that cannot be met", ["generate", "-m", BASE, "-p", "abc", "-c", "120", "--kv", "auto", "--kv-bits", "0.5"], 1, "smallest possible")
    for words, needle in ((["--kv", "auto"], "needs a budget"), (["--kv-bits", "3"], "go with --kv auto"),
                          (["--kv", "auto", "--kv-bits", "3", "--kv-memory", "1M"], "one of them"),
                          (["--kv", "auto", "--kv-memory", "12X"], "'12X'"), (["--kv", "auto", "--kv-memory", "-1M"], "'-1M'"),
                          (["--kv", "auto", "--kv-bits", "3", "--kv-layer", "0=f16"], "--kv-layer")):
        fails(" ".join(words), ["generate", "-m", BASE, "-p", "abc", *words], 2, needle)


def recommending():
    r = run("recommend", BASE, "-c", "100")
    case("recommend: a table and a command", r.returncode == 0 and "velox:bits=4" in r.text and "longest context" in r.text, r.text)
    command = r.stdout.decode().rstrip().splitlines()[-1].split()
    case("the command is one of ours", command[:2] == ["veloxquant", "chat"] and "--kv" in command, command)
    p = run("generate", *command[2:], "-p", "abc", "-n", "2", "--temp", "0", "-q")
    case("and its options work", p.returncode == 0, p.text)
    r = run("recommend", BASE, "-c", "4000", "--json")
    found = json.loads(r.stdout)
    rows = {x["kv"]: x for x in found["rows"]}
    case("as JSON", found["n_ctx"] == 4000 and rows["f16"]["bytes"] > rows["velox:bits=2"]["bytes"] and rows["f16"]["expected_kl"] == 0 and
         found["command"].startswith("veloxquant "), found)
    r = run("recommend", BASE, "-c", "100", "--memory", "1K")
    case("nothing fits", r.returncode == 0 and "not even" in r.text, r.text)
    fails("no model", ["recommend"], 2, "no model")
    fails("no size", ["recommend", BASE, "--memory", "much"], 2, "'much'")


def real():
    r = run("recommend", REAL, "-c", "8192", "--memory", "150M", "--json")
    found = json.loads(r.stdout)
    case("150 MiB for SmolLM2 with 8,192 tokens: packed", found["command"].find("velox:bits=") > 0 or "--kv auto" in found["command"], found["command"])
    r = run("generate", "-m", REAL, "-p", "Once upon a time", "-n", "4", "--temp", "0", "-c", "2048", "--kv", "auto", "--kv-memory", "10M")
    case("a real model within 10 MiB", r.returncode == 0 and "bits of keys by layer" in r.text, r.text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        planning(folder)
        calibrated(folder)
    automatic()
    recommending()
    if REAL:
        real()
    print("%d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
