#!/usr/bin/env python3
"""precompute, and caches that read what it wrote, as a person meets them.

usage: test_cli_precompute.py PROGRAM TOYS
"""
import os
import subprocess
import sys
import tempfile

PROGRAM, TOYS = sys.argv[1], sys.argv[2]
BASE = os.path.join(TOYS, "gguf_ok", "base_valid.gguf")  # head size 8, 1 layer, 2 kv heads
NAME = "qr-d8-seed0.vqa"
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


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def making(folder):
    out = os.path.join(folder, "tables")
    r = run("precompute", BASE, "-o", out)
    case("a model gives the shape", r.returncode == 0 and os.listdir(out) == [NAME] and os.path.join(out, NAME) in r.text and
         "1 layers, 2 kv heads, codebooks of 1 to 4 bits" in r.text, (r.text, r.returncode))
    first = read(os.path.join(out, NAME))
    run("precompute", "--model", BASE, "-o", out)
    case("again: the same bytes", read(os.path.join(out, NAME)) == first)
    r = run("precompute", "--head-sizes", "64,96", "--layers", "2", "--kv-heads", "1", "--rotation", "hadamard", "--bits", "3", "--seed", "5", "-o", out)
    case("head sizes, hadamard, a seed", r.returncode == 0 and sorted(os.listdir(out)) == ["hadamard-d64-seed5.vqa", "hadamard-d96-seed5.vqa", NAME] and
         "2 layers, 1 kv heads, codebooks of 3 to 3 bits" in r.text, (r.text, os.listdir(out)))
    for file, needle in ((NAME, "qr rotations of head size 8 for seed 0, 1 layers, 2 kv heads"), ("hadamard-d96-seed5.vqa", "hadamard rotations of head size 96 for seed 5")):
        r = run("verify", os.path.join(out, file))
        case("verify knows %s" % file, r.returncode == 0 and needle in r.text and "fine" in r.text, r.text)
    for words, needle, status in (([], "--head-sizes", 2), ([BASE], "-o DIR", 2), ([BASE, "--head-sizes", "64", "-o", out], "--head-sizes", 2),
                                  (["--head-sizes", "64", "--rotation", "qrs", "-o", out], "'qrs'", 2), (["--head-sizes", "513", "-o", out], "512", 2),
                                  (["--head-sizes", "64", "--bits", "4-1", "-o", out], "'4-1'", 2), (["--head-sizes", "64", "--bits", "0-4", "-o", out], "'0-4'", 2),
                                  (["--head-sizes", "64", "-o", os.path.join(folder, "no", "x")], "cannot make the folder", 1),
                                  ([os.path.join(folder, "none.gguf"), "-o", out], "none.gguf", 1)):
        r = run("precompute", *words)
        case("precompute %s: says why" % " ".join(os.path.basename(w) for w in words), r.returncode == status and needle in r.text, (r.returncode, r.text))
    return out


def using(folder, out):
    method = ("--kv", "turboquant-mse:bits=2,haar=1,sinks=0,residual=0")
    drawn, loaded = generate(*method), generate(*method, "--artifact-dir", out)
    case("a cache with the files generates the same", drawn.returncode == 0 and len(drawn.stdout) > 50 and loaded.stdout == drawn.stdout, loaded.text)
    r = generate(*method, "--artifact-dir", os.path.join(folder, "none"))
    case("a folder that is not there is not missed", r.returncode == 0 and r.stdout == drawn.stdout, r.text)
    r = generate(*method, "--kv-seed", "9", "--artifact-dir", out)
    case("nor a file for another seed", r.returncode == 0 and r.stdout == generate(*method, "--kv-seed", "9").stdout, r.text)
    path = os.path.join(out, NAME)
    whole = read(path)
    for name, data, needle in (("cut", whole[:len(whole) // 2], "its shape makes"), ("empty", b"", ""), ("with one bit changed", whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], "checksum"),
                               ("of another version", whole[:16] + b"\x07" + whole[17:], "version 7, this program reads version 1"), ("that is none", b"GGUF" + whole[4:], "not a file")):
        write(path, data)
        r = generate(*method, "--artifact-dir", out)
        case("a file %s is refused, by name" % name, r.returncode in (1, 2) and path in r.text and needle in r.text, (r.returncode, r.text))
        if name == "with one bit changed":
            r = run("verify", path)
            case("and by verify", r.returncode == 1 and path in r.text and needle in r.text, (r.returncode, r.text))
    r = generate("--kv", "turboquant-mse", "--artifact-dir", out)
    case("a cache without dense matrices reads no file", r.returncode == 0, r.text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        using(folder, making(folder))
    if failed:
        print("%d cases failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
