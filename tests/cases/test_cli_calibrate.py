#!/usr/bin/env python3
"""calibrate, and methods that need a calibration, as a person meets them.

usage: test_cli_calibrate.py PROGRAM TOYS [MODEL]
"""
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, TOYS = sys.argv[1], sys.argv[2]
REAL = sys.argv[3] if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else None
BASE = os.path.join(TOYS, "gguf_ok", "base_valid.gguf")
OTHER = os.path.join(TOYS, "gguf_heads", "hd64_h2_kv1.gguf")
WORDS = b"the cat sat on the mat ab "
CALIBRATED = ("optimal", "spectralquant")
failed = 0


def case(name, condition, seen=""):
    global failed
    failed += not condition
    print(("ok      " if condition else "FAILED  ") + name + ("" if condition else "\n        %s" % (str(seen)[:2000],)))


def run(*words):
    p = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=100)
    p.text = p.stdout.decode() + p.stderr.decode()
    return p


def generate(*words):
    return run("generate", "-m", BASE, "-p", "ab ab", "-n", "100", "--temp", "0", "--ignore-eos", "-q", *words)


def making(folder):
    text, out = os.path.join(folder, "text.txt"), os.path.join(folder, "toy.vqc")
    with open(text, "wb") as f:
        f.write(WORDS * 200)
    r = run("calibrate", BASE, "--text", text, "-o", out)
    case("calibrate: says what it made, status 0", r.returncode == 0 and out in r.text and "1 layers, 4 heads, 2 kv heads, head size 8" in r.text and
         re.search(r"hash [0-9a-f]{16}, for model [0-9a-f]{16}", r.text), r.text)
    again = os.path.join(folder, "again.vqc")
    run("calibrate", BASE, "--text", text, "-o", again, "-t", "3")
    with open(out, "rb") as a, open(again, "rb") as b:
        case("the same bytes with three threads", a.read() == b.read())
    for words, needle, status in (([BASE, "-o", again], "--text", 2), ([BASE, "--text", text], "-o FILE", 2), ([BASE, "--text", os.path.join(folder, "no"), "-o", again], "No such file", 1),
                                  ([BASE, "--text", text, "-o", os.path.join(folder, "no", "x.vqc")], "No such file", 1),
                                  ([BASE, "--text", text, "-o", again, "--tokens", "100"], "256", 1)):
        r = run("calibrate", *words)
        case("calibrate %s: says why" % " ".join(os.path.basename(w) for w in words[1:]), r.returncode in (1, 2) and needle in r.text and
             r.returncode == status, (r.returncode, r.text))
    return text, out


def using(folder, out):
    for method in CALIBRATED:
        r = generate("--kv", method)
        case("%s without a calibration: refused, with the command that makes one" % method,
             r.returncode == 2 and "veloxquant calibrate MODEL --text FILE -o FILE.vqc" in r.text and method in r.text, (r.returncode, r.text))
        r = generate("--kv", method, "--calibration", out)
        named = generate("--kv", "%s:calibration=%s" % (method, out))
        case("%s with it generates, by either name the same" % method,
             r.returncode == 0 and len(r.stdout) > 50 and r.stdout == named.stdout, r.text + named.text)
    case("outlier works without, and with", generate("--kv", "outlier").returncode == 1 and  # heads of 8 have no 8 channels to spare
         run("generate", "-m", OTHER, "-p", "a", "-n", "100", "--kv", "outlier", "--ignore-eos", "-q").returncode == 0)
    other = os.path.join(folder, "other.vqc")
    text = os.path.join(folder, "text.txt")
    r = run("calibrate", OTHER, "--text", text, "-o", other)
    case("another model's calibration is made", r.returncode == 0, r.text)
    r = run("generate", "-m", OTHER, "-p", "a", "-n", "100", "--kv", "outlier", "--calibration", other, "--ignore-eos", "-q")
    case("outlier with a calibration", r.returncode == 0, r.text)
    for words in (["--calibration", other], []):
        r = generate("--kv", CALIBRATED[0] if words else "%s:calibration=%s" % (CALIBRATED[0], other), *words)
        hashes = re.findall(r"[0-9a-f]{16}", r.text)
        case("another model's file is refused, with both hashes", r.returncode in (1, 2) and other in r.text and len(set(hashes)) == 2, (r.returncode, r.text))
    with open(out, "rb") as f:
        whole = f.read()
    bad = os.path.join(folder, "bad.vqc")
    for name, data, needle in (("truncated", whole[:len(whole) // 2], "bytes"), ("empty", b"", ""), ("with one bit changed", whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], "checksum"),
                               ("that is none", b"GGUF" + whole[4:], "")):
        with open(bad, "wb") as f:
            f.write(data)
        r = generate("--kv", CALIBRATED[0], "--calibration", bad)
        case("a file %s is refused, by name" % name, r.returncode in (1, 2) and bad in r.text and needle in r.text, (r.returncode, r.text))


def interrupting(folder):
    """A long text, so that the signal comes while tokens run."""
    text = os.path.join(folder, "long.txt")
    with open(text, "wb") as f:
        f.write(WORDS * (400 if REAL else 60000))
    out = os.path.join(folder, "stopped.vqc")
    before = sorted(os.listdir(folder))
    p = subprocess.Popen([PROGRAM, "calibrate", REAL or BASE, "--text", text, "-o", out, "--tokens", "0", "-t", "1"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.5 if REAL else 0.3)
    p.send_signal(signal.SIGINT)
    seen, err = p.communicate(timeout=100)
    case("Ctrl-C: status 130 and no file", p.returncode == 130 and sorted(os.listdir(folder)) == before, (p.returncode, seen, err, os.listdir(folder)))
    with open(text, "wb") as f:
        f.write(WORDS * 60000)
    # On a terminal it is said four times a second; a pipe hears every ten.
    ours, its = pty.openpty()
    p = subprocess.Popen([PROGRAM, "calibrate", BASE, "--text", text, "-o", out, "--tokens", "0", "-t", "1"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=its)
    os.close(its)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other side is gone
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    lines = re.findall(rb"tokens: (\d+) of (\d+), \d+ s left", seen)
    done = [int(m[0]) for m in lines]
    case("progress: rises, says the time left", p.wait() == 0 and lines and done == sorted(done) and len({m[1] for m in lines}) == 1, seen[-500:])


def main():
    with tempfile.TemporaryDirectory() as folder:
        text, out = making(folder)
        using(folder, out)
        interrupting(folder)
    if failed:
        print("%d cases failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
