#!/usr/bin/env python3
"""quantize, verify, inspect and eval sharing as a person meets them.

usage: test_cli_reservoir.py PROGRAM TOYS [MODEL]
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

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


def averages(folder):
    """Bits by what was measured with a text."""
    text, out, table = (os.path.join(folder, name) for name in ("text.txt", "mixed.vqr", "mixed.json"))
    with open(text, "w") as f:
        f.write("a text about many things, and of several words. " * 20)
    r = run("quantize", BASE, out, "--bits", "3", "--sensitivity", text, "--sensitivity-tokens", "40", "-q", "--json", table)
    case("quantize --sensitivity: status 0", r.returncode == 0 and "7 tensors quantised" in r.text, r.text)
    if r.returncode == 0:
        with open(table) as f:
            made = json.load(f)
        rows = [x for x in made["rows"] if x["to"].startswith("VQ")]
        n = [x["shape"][0] * x["shape"][1] for x in rows]
        case("its losses, types and seconds", made["sensitivity_seconds"] > 0 and len(rows) == 7 and
             all(x["kl_at_2_bits"] >= 0 for x in rows) and all(x["kl_at_2_bits"] is None for x in made["rows"] if x not in rows) and
             sum(int(x["to"][2]) * k for x, k in zip(rows, n)) <= 3 * sum(n), rows)
    for words, needle in ((["--bits", "4", "--sensitivity", text], "nothing to share"),
                          (["--bits", "3", "--sensitivity", text, "--sensitivity-tokens", "8"], "8")):
        r = run("quantize", BASE, out, *words)
        case("quantize %s: status 2" % " ".join(words[:3:2] + words[3:]), r.returncode == 2 and needle in r.text, r.text)
    r = run("quantize", BASE, out, "--bits", "3", "--sensitivity", os.path.join(folder, "none.txt"))
    case("quantize --sensitivity of no file: status 1", r.returncode == 1 and "none.txt" in r.text, r.text)


def making(folder):
    out = os.path.join(folder, "toy.vqr")
    table = os.path.join(folder, "table.json")
    r = run("quantize", BASE, out, "--bits", "3", "--tensor", "blk.*.ffn_down*=4", "--json", table)
    lines = r.stdout.decode().splitlines()
    case("quantize: a table, its sums, status 0", r.returncode == 0 and not r.stderr and lines[0].startswith("tensor") and
         any(l.startswith("blk.0.ffn_down.weight") and " VQ4 " in l for l in lines) and "7 tensors quantised" in r.text, r.text)
    with open(table) as f:
        rows = json.load(f)["rows"]
    case("its table as JSON", len(rows) == 12 and {x["to"] for x in rows} == {"F32", "VQ3", "VQ4"}, rows)
    text = run("generate", "-m", out, "-p", "ab", "-n", "8", "--temp", "0", "-q")
    case("generate from a reservoir", text.returncode == 0 and text.stdout, text.text)
    again = os.path.join(folder, "again.vqr")
    run("quantize", BASE, again, "--bits", "3", "--tensor", "blk.*.ffn_down*=4", "-t", "3")
    with open(out, "rb") as a, open(again, "rb") as b:
        case("the same bytes with three threads", a.read() == b.read())
    averages(folder)
    r = run("inspect", out)
    case("inspect a reservoir", r.returncode == 0 and "reservoir version 1" in r.text and "VQ4" in r.text and
         "family          llama" in r.text, r.text)
    for words, needle in (([BASE, out, "--bits", "5"], "5"), ([BASE, out, "--bits", "1"], "1 bits"),
                          ([BASE, out, "--tensor", "x=3"], "matches no matrix"), ([BASE], "operand"),
                          ([BASE, out, "--persist-rotation"], "qr"), ([BASE, out, "--rotation", "x"], "'x'")):
        r = run("quantize", *words)
        case("quantize %s: status 2" % " ".join(words[1:]), r.returncode == 2 and (needle in r.text or needle == "operand"), r.text)
    r = run("quantize", BASE, os.path.join(folder, "no", "x.vqr"))
    case("a folder that is not there: status 1", r.returncode == 1 and "No such file" in r.text, r.text)
    return out


def checking(folder, out):
    r = run("verify", out)
    case("verify: fine", r.returncode == 0 and "all sums are right" in r.text, r.text)
    r = run("verify", "-q", BASE)
    case("verify -q of a GGUF file: nothing to say", r.returncode == 0 and r.text == "", r.text)
    with open(out, "rb") as f:
        whole = f.read()
    header = json.loads(whole[int.from_bytes(whole[32:40], "little"):])
    place = next(t for t in header["tensors"] if t["name"] == "blk.0.ffn_up.weight")["offset"]
    bad = os.path.join(folder, "bad.vqr")

    def refused(name, data, needle, words=("verify",)):
        with open(bad, "wb") as f:
            f.write(data)
        r = run(*words, bad)
        case(name, r.returncode == 1 and needle in r.text and "bad.vqr" in r.text and not r.stdout, r.text)

    refused("an altered weight", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1:], "blk.0.ffn_up.weight was altered")
    refused("an altered header", whole[:-9] + b"!" + whole[-8:], "header was altered", ("inspect",))
    refused("a cut file", whole[:-1000], "was cut", ("inspect",))
    refused("another version", whole[:8] + b"\2" + whole[9:], "version 2", ("inspect",))
    saved = os.path.join(folder, "prompt.kv")
    run("generate", "-m", out, "-p", "abcabc", "-n", "2", "--save-cache", saved)
    r = run("verify", saved)
    case("verify a saved prompt", r.returncode == 0 and "saved prompt" in r.text, r.text)
    with open(saved, "rb") as f:
        whole = f.read()
    refused("an altered prompt", whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], "altered")
    refused("an altered cache", whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], "cache was altered")


def sharing(folder, out):
    table = os.path.join(folder, "sharing.json")
    r = run("eval", "sharing", "-m", out, "--processes", "3", "-p", "8", "-n", "4", "--json", table)
    case("eval sharing: a line for each process", r.returncode == 0 and "3 of 3" in r.text and "together" in r.text, r.text)
    with open(table) as f:
        row = json.load(f)["rows"][0]
    each = row["together"]
    case("every process has the whole file, and a third of what it costs",
         len(each) == 3 and all(p["model_rss"] >= os.path.getsize(out) // 2 and p["model_pss"] <= p["model_rss"] / 2 for p in each), row)
    r = run("eval", "sharing", "-m", BASE, "--quantize", "4", "--processes", "2", "-p", "8", "-n", "4", "--json", table)
    with open(table) as f:
        row = json.load(f)["rows"][0]
    case("quantised in each process: nothing of the model is shared", r.returncode == 0 and
         all(p["model_pss"] == p["model_rss"] > 0 for p in row["together"]), row)
    r = run("eval", "sharing", "-m", os.path.join(folder, "none.vqr"))
    case("eval sharing of a file that is not there", r.returncode == 1 and "none.vqr" in r.text, r.text)


def stopping(folder):
    if not REAL:
        print("SKIP    Ctrl-C (no model)")
        return
    out = os.path.join(folder, "real.vqr")
    p = subprocess.Popen([PROGRAM, "quantize", REAL, out], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.time() + 30
    while time.time() < end and not any(n.startswith("real.vqr.tmp") for n in os.listdir(folder)):
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    text, err = p.communicate(timeout=60)
    case("Ctrl-C: a message, status 130, no file", p.returncode == 130 and b"no file was written" in err and b"quantised already" in err
         and not any(n.startswith("real.vqr") for n in os.listdir(folder)), (p.returncode, err, os.listdir(folder)))


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = making(folder)
        checking(folder, out)
        sharing(folder, out)
        stopping(folder)
    return 1 if failed else 0


sys.exit(main())
