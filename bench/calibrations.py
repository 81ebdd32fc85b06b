"""Calibrations that benchmarks need, made once and kept in a folder."""
import os
import subprocess
import sys


def make(program, model, text, folder, name, threads, tokens=8192, codebooks=""):
    """The path of a calibration of model on the first tokens of text; made where it is not there yet."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".vqc")
    if not os.path.exists(path):
        subprocess.run([program, "calibrate", model, "--text", text, "--tokens", str(tokens), "-o", path, "-t", str(threads)] +
                       (["--codebooks", codebooks] if codebooks else []), check=True, stdout=sys.stderr)
    return path
