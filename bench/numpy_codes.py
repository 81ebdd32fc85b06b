"""Rows coded the way `optimal` does it, in numpy, with any metric and basis: see src/kv/codecs/optimal.c.

A row is turned by a matrix, its coordinates are sorted by what they vary, groups of 8 get bits by reverse water-filling, groups of equal
bits are mixed by Hadamard matrices, and Lloyd-Max codes of N(0, 1) with a gain that does not shrink take the place of trellis codes
(whose errors are 2 dB less and alike otherwise). Gains are exact.
"""
import functools
import math

import numpy as np

GROUP = 8
LEAST = 2.0 ** -10      # of the mean: no direction is less loud


@functools.lru_cache(None)
def lloyd_max(bits):
    """Levels, bounds and squared error for N(0, 1)."""
    if bits == 0:
        return np.zeros(1), np.zeros(0), 1.0
    n = 1 << bits
    cdf = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))))
    grid = np.linspace(-10, 10, 8001)
    levels = np.interp((np.arange(n) + 0.5) / n, cdf(grid / math.sqrt(3)), grid)      # Panter and Dite's density
    for _ in range(60 * n if n <= 16 else 300):
        bounds = (levels[1:] + levels[:-1]) / 2
        edges = np.concatenate(([-40], bounds, [40]))
        share = np.diff(cdf(edges))
        density = np.exp(-edges ** 2 / 2) / math.sqrt(2 * math.pi)
        levels = -np.diff(density) / np.maximum(share, 1e-300)
        if n > 64 and not np.all(np.diff(levels) > 0):
            raise ValueError("levels of %d bits do not converge" % bits)
    return levels, (levels[1:] + levels[:-1]) / 2, 1 - float(np.sum(share * levels ** 2))


def noise(bits):
    """What bits leave of a coordinate's variance when gains do not shrink; without bits all of it."""
    error = lloyd_max(bits)[2]
    return error / (1 - error) if bits else 1.0


def allocate(energy, n_bits, most, least):
    """Bits of groups by reverse water-filling."""
    bits = np.full(len(energy), least)
    left = np.array([noise(b) for b in range(most + 1)] + [0.0])
    for _ in range(n_bits - least * len(energy)):
        less = np.where(bits < most, energy * (left[bits] - left[np.minimum(bits + 1, most)]), -1)
        bits[np.argmax(less)] += 1
    return bits


@functools.lru_cache(None)
def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / math.sqrt(n)


def power_of(h, power):
    """A symmetric matrix to a power, its eigenvalues lifted."""
    values, vectors = np.linalg.eigh((h + h.T) / 2)
    values = np.maximum(values, 0)
    values += LEAST * values.mean() if values.mean() > 0 else 1
    return (vectors * values ** power) @ vectors.T


class Coder:
    """For rows whose second moment is c [d][d], with a metric h [d][d] to some power.

    form: "diag" folds channels, "full" takes the principal axes of the weighted rows; "even" mixes all coordinates at equal bits, which
    are divided by the fourth root of what they vary by once weighted (the best that a fold can do there); "rotated" only mixes.
    n_bits are those of a row; by_one: bits go to coordinates one by one, which are then not mixed, up to 8.
    """

    def __init__(self, c, h, power, form, n_bits, least=0, by_one=False, seed=0):
        d, group = len(c), 1 if by_one else GROUP
        self.n_bits = n_bits
        base, principal = form.split("-")[0], form.endswith("full")
        if base == "rotated":
            to, back, energy = np.eye(d), np.eye(d), np.full(d, np.trace(c) / d)
        else:
            if principal:
                weight, unweight = power_of(h, power / 2), power_of(h, -power / 2)
                energy, axes = np.linalg.eigh(weight @ c @ weight)
                to, back = axes.T @ weight, unweight @ axes
            else:
                loud = np.maximum(np.diag(h), 0)
                loud = loud + LEAST * loud.mean() if loud.mean() > 0 else np.ones(d)
                to, back, energy = np.diag(loud ** (power / 2)), np.diag(loud ** (-power / 2)), np.diag(c) * loud ** power
            energy = np.maximum(energy, 0) + 2.0 ** -13 * energy.mean()
            order = np.argsort(-energy, kind="stable")
            to, back, energy = to[order], back[:, order], energy[order]
        if base in ("even", "rotated"):
            if base == "even":
                fold = energy ** 0.25
                to, back, energy = to / fold[:, None], back * fold, energy / fold ** 2
            n_groups = d // group
            self.bits = np.repeat(n_bits // group // n_groups + (np.arange(n_groups) < n_bits // group % n_groups), group)
            if base == "even" or base == "rotated":
                to, back, energy = self._mixed(to, back, energy, [(0, d)], seed)
        else:
            most = 8 if by_one else 4
            groups = allocate(energy.reshape(-1, group).sum(axis=1), n_bits // group, most, least)
            self.bits = np.repeat(groups, group)
            top = self.bits == most
            if not by_one and top.any():      # see even_out of optimal.c
                fold = np.ones(d)
                fold[top] = (energy[top] / energy[top].mean()) ** 0.25
                to, back, energy = to / fold[:, None], back * fold, energy / fold ** 2
            if not by_one:
                runs, g = [], 0
                while g < len(groups):
                    same = next((i for i in range(g, len(groups)) if groups[i] != groups[g]), len(groups)) - g
                    n = 1 << (same.bit_length() - 1)
                    runs.append((g * GROUP, n * GROUP))
                    g += n
                to, back, energy = self._mixed(to, back, energy, runs, seed)
        self.to, self.back, self.energy = to.astype(np.float32), back.astype(np.float32), energy
        self.scale = np.sqrt(energy).astype(np.float32)
        left = energy * np.array([noise(b) for b in self.bits])
        self.expected = (back * left) @ back.T      # second moment of errors, as the theory has it

    @staticmethod
    def _mixed(to, back, energy, runs, seed):
        mix, signs = np.zeros((len(to),) * 2), np.random.default_rng(seed).choice([-1.0, 1.0], len(to))
        energy = energy.copy()
        for first, n in runs:
            mix[first:first + n, first:first + n] = hadamard(n)
            energy[first:first + n] = energy[first:first + n].mean()
        mix = mix * signs
        return mix @ to, back @ mix.T, energy

    def __call__(self, x):
        """Rows [n][d] as they come back."""
        y = x @ self.to.T
        coded = self.bits > 0
        z = y / self.scale
        size = np.sqrt(np.mean(z[:, coded] ** 2, axis=1, keepdims=True)) + np.float32(1e-20)
        size *= self._wider(y, z, size, coded)
        z = self._levels(z / size)
        z *= self.scale
        own, along = np.sum(y[:, coded] ** 2, axis=1, keepdims=True), np.sum(y[:, coded] * z[:, coded], axis=1, keepdims=True)
        return (z * np.where(along > 0, own / np.maximum(along, np.float32(1e-30)), 0)) @ self.back.T

    def _levels(self, z):
        z = z.copy()
        for b in np.unique(self.bits):
            levels, bounds, _ = lloyd_max(int(b))
            at = self.bits == b
            z[:, at] = levels.astype(np.float32)[np.searchsorted(bounds.astype(np.float32), z[:, at])]
        return z

    def _wider(self, y, z, size, coded):
        """How much larger than its rms a row's gain has to be, where coordinates would be cut off: what fits best."""
        out = np.ones_like(size)
        at = np.flatnonzero(np.abs(z[:, coded]).max(axis=1) > 3 * size[:, 0])
        best = np.full(len(at), -1.0)
        for wider in (1, 1.25, 1.6, 2.1, 3) if len(at) else ():
            levels = self._levels(z[at] / (size[at] * np.float32(wider))) * self.scale
            fit = np.sum(y[at] * levels, axis=1) ** 2 / np.maximum(np.sum(levels * levels, axis=1), 1e-30)
            out[at[fit > best]] = wider
            best = np.maximum(best, fit)
        return out
