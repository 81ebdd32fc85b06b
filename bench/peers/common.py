"""What bench/peers/speed and bench/peers/perplexity share: the peers' virtual environment and worker processes."""
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))

PACKAGE = "llama-cpp-python==0.3.36"
MODELS = {
    "SmolLM2-135M": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma3-270M": "gemma-3-270m-q4_k_m.gguf",
}


def model_path(name):
    path = os.path.join(os.environ.get("VQ_MODELS") or os.path.join(ROOT, "models"), MODELS[name])
    if not os.path.exists(path):
        raise SystemExit("%s is missing: run tools/fetch-models" % path)
    return path


def worker_path():
    """The release build's worker."""
    for folder in [os.environ.get("VQ_BUILD") or "build", "build-release"]:
        path = os.path.join(ROOT, folder, "bench", "peers", "vq-worker")
        if os.path.exists(path):
            return path
    raise SystemExit("vq-worker is not built: meson setup build && meson compile -C build")


def peers_python():
    """A Python with llama_cpp: $VQ_PEERS_VENV, or our own environment, where the package is built for this machine's CPU
    (a source build, about 15 minutes on two cores). None, with a message, where that can't be done."""
    venv = os.environ.get("VQ_PEERS_VENV") or os.path.join(ROOT, ".venv-peers")
    python = os.path.join(venv, "bin", "python")
    ready = lambda: os.path.exists(python) and subprocess.run(
        [python, "-c", "import llama_cpp, numpy"], capture_output=True).returncode == 0
    if ready():
        return python
    if os.environ.get("VQ_PEERS_VENV"):
        print("skipped: llama_cpp can't be imported by %s" % python, file=sys.stderr)
        return None
    if not shutil.which("cmake") or not shutil.which("c++"):
        print("skipped: building llama.cpp needs cmake and g++ (apt-get install cmake g++)", file=sys.stderr)
        return None
    print("building %s in %s, once ..." % (PACKAGE, os.path.relpath(venv, ROOT)), file=sys.stderr)
    log = os.path.join(ROOT, ".venv-peers.log")
    with open(log, "w") as out:
        built = subprocess.run([sys.executable, "-m", "venv", venv], stdout=out, stderr=out).returncode == 0 and \
            subprocess.run([python, "-m", "pip", "install", "--no-binary", "llama-cpp-python", "numpy", PACKAGE],
                           env=dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON"), stdout=out, stderr=out).returncode == 0
    if not built or not ready():
        print("skipped: llama.cpp could not be built, see %s" % log, file=sys.stderr)
        return None
    return python


class Worker:
    """A process that holds one model at one depth and answers commands (worker.c)."""

    def __init__(self, command, **about):
        self.about = about
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.hello = self.answer()

    def send(self, *words):
        self.process.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s ended with status %s" % (self.process.args[0], self.process.wait()))
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit("%s: %s" % (self.process.args[0], answer["error"]))
        return answer

    def ask(self, *words):
        self.send(*words)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def veloxquant(model, threads, n_ctx, kv="f16", exact=False, calibration=""):
    """`@` in kv stands for the path of a calibration."""
    keys, _, values = (part.replace("@", calibration) for part in kv.partition("/"))
    command = [worker_path(), model_path(model), str(threads), str(n_ctx), keys, values or keys]
    return Worker(command + (["exact"] if exact else []), system="veloxquant", kv=kv)


def llama_cpp(python, model, threads, n_ctx, kv="f16", flash="on"):
    keys, _, values = kv.partition("/")
    command = [python, os.path.join(HERE, "llama_cpp_worker.py"), model_path(model), str(threads), str(n_ctx), keys,
               values or keys, "flash=" + flash]
    return Worker(command, system="llama.cpp", kv=kv, flash=flash)
