"""The head that every results/*.json carries: what machine, what build, what command, when (results/README.md)."""
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def machine():
    fields = {}
    with open("/proc/cpuinfo") as f:
        for line in f:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    with open("/proc/meminfo") as f:
        kib = int(f.readline().split()[1])
    model = fields.get("model name", platform.machine())
    if "cpu family" in fields:
        model += " (family %s model %s stepping %s)" % (fields["cpu family"], fields.get("model"), fields.get("stepping"))
    tiers = [tier for tier, needs in (
        ("avx2", {"avx2", "fma", "f16c", "bmi2"}),
        ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi"}),
    ) if needs <= flags]
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gib": round(kib / 2**20, 1), "tiers": tiers,
            "tier_ceiling": os.environ.get("VQ_CPU") or "none", "load_before": os.getloadavg()[0]}


def head(what, versions):
    return {
        "schema": 1,
        "what": what,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "modified": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        "command": shlex.join([os.path.relpath(sys.argv[0], ROOT)] + sys.argv[1:]),
        "machine": machine(),
        "versions": dict({"compiler": _output("cc", "--version").split("\n")[0], "kernel": platform.release()}, **versions),
    }


def spread(samples, digits=4):
    """Median and quartiles beside the samples they come from."""
    ordered = sorted(samples)
    if len(ordered) > 1:
        q1, _, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    else:
        q1 = q3 = ordered[0]
    rounded = lambda x: float("%.*g" % (digits, x))
    return {"median": rounded(statistics.median(ordered)), "q1": rounded(q1), "q3": rounded(q3),
            "samples": [rounded(x) for x in samples]}


def write(path, results):
    """Whole or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = "%s.tmp-%d" % (path, os.getpid())
    with open(temporary, "w") as f:
        f.write(compact(results) + "\n")
    os.replace(temporary, path)


def put(path, section, value):
    """One section of a file whose others stay."""
    try:
        with open(path) as f:
            whole = json.load(f)
    except FileNotFoundError:
        whole = {}
    write(path, dict(whole, **{section: value}))


def compact(value, indent=0):
    """JSON whose diff can be read: a list of numbers or a small object stays on one line."""
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(flat) + indent <= 118:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        body = [pad + json.dumps(k) + ": " + compact(v, indent + 1) for k, v in value.items()]
        return "{\n" + ",\n".join(body) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + compact(v, indent + 1) for v in value) + "\n" + " " * indent + "]"
