"""The head that every results/*.json carries: what machine, what build, what command, when (results/README.md)."""
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time

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
        ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "gfni"}),
    ) if needs <= flags]
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gib": round(kib / 2**20, 1), "tiers": tiers,
            "tier_ceiling": os.environ.get("VQ_CPU") or "none", "load_before": os.getloadavg()[0]}


def command():
    """As it can be run again anywhere: paths in the tree from its top, others by their name alone."""
    words = [os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)]
    for word in sys.argv[1:]:
        if os.path.isabs(word):
            word = os.path.relpath(word, ROOT) if word.startswith(ROOT + os.sep) else os.path.basename(word)
        words.append(word)
    return shlex.join(words)


def head(what, versions):
    return {
        "schema": 1,
        "what": what,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "modified": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        "command": command(),
        "machine": machine(),
        "versions": dict({"compiler": _output("cc", "--version").split("\n")[0], "kernel": platform.release()}, **versions),
    }


# The limits of veloxquant/measure.h: more than this, and times are not to be trusted.
QUIET_OTHERS, QUIET_STEAL, QUIET_WAITING = 0.10, 0.02, 0.5
TICK = 1 / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """CPU time of this process and of all that it started, those that still run included."""
    parents, took = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:      # it has ended
            continue
        parents[int(entry)] = int(fields[1])
        took[int(entry)] = sum(map(int, fields[11:15])) * TICK      # its own, and that of its children that ended
    ours = {os.getpid()}
    for _ in range(len(parents)):
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            break
        ours |= more
    return sum(took.get(pid, 0) for pid in ours)


def load_mark():
    mark = {"wall": time.monotonic(), "own": own_seconds()}
    with open("/proc/stat") as f:
        for line in f:
            words = line.split()
            if words[0] == "cpu":
                user, nice, system, _, _, irq, softirq, steal = map(int, words[1:9])
                mark.update(busy=(user + nice + system + irq + softirq) * TICK, steal=steal * TICK)
            elif words[0] == "procs_running":
                mark["runnable"] = max(int(words[1]) - 1, 0)      # without this process
    return mark


def load_between(marks):
    """What else the machine did between the first and the last mark, as CPUs' worth of time: what vq_load says for one process,
    for a script and its workers."""
    first, last = marks[0], marks[-1]
    wall = last["wall"] - first["wall"]
    others = max((last["busy"] - first["busy"]) - (last["own"] - first["own"]), 0) / wall
    steal = (last["steal"] - first["steal"]) / wall
    waiting = sum(m["runnable"] for m in marks) / len(marks)
    return {"quiet": others <= QUIET_OTHERS and steal <= QUIET_STEAL and waiting <= QUIET_WAITING,
            "others_cpus": round(others, 3), "steal_cpus": round(steal, 3), "waiting": round(waiting, 2)}


def load_text(load):
    """Nothing on a quiet machine."""
    return "" if load["quiet"] else "not quiet: other programs took %.2f CPUs, the host %.2f; trust ratios within this run at most" % (
        load["others_cpus"], load["steal_cpus"])


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
