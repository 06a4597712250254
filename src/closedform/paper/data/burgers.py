"""Viscous Burgers' equation `u_t + u u_x = nu u_xx` on the periodic domain (0, 2 pi): initial conditions and solutions.

`solve` is a pseudo-spectral solver; `cole_hopf` is the exact solution that it is tested against::

    theta_0 = exp(-1 / (2 nu) int u_0)      theta_t = nu theta_xx      u = -2 nu theta_x / theta

>>> x = 2 * np.pi * np.arange(64) / 64
>>> u = solve(np.sin(x)[None], viscosity=0.5, time=1.0)
>>> bool(abs(u - cole_hopf(np.sin(x)[None], 0.5, 1.0)).max() < 1e-8)
True

The initial conditions are the Fourier neural operator's: a Gaussian random field with mean zero and covariance
`625 (-Laplace + 25)^-2` on the unit circle, stretched to (0, 2 pi).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from . import store

VISCOSITY, TIME, POINTS, SAMPLES = 0.1, 1.0, 8192, 2048
SPLIT = (1448, 200, 400)  # training, validation, test, of 2,048
VERSION = 1  # of the stored data

_NEGLIGIBLE = 1e-14  # of the largest coefficient: what a smaller grid may drop
_RESOLVED = 1e-7  # of the largest coefficient: what may be left at the end of the spectrum
_RISEN = 1e-6  # of the largest coefficient: what a front may bring to the end of the spectrum, on the way
_MOST = 500_000  # steps of one solution, by the estimate
_BLOCK = 128  # samples that are solved at once on a CPU, and kept in case the others are not reached
_COURANT = 0.5
_STEP = 0.01  # in units of the time that the steepest slope takes to change by itself


class BurgersSplit(store.ThreeParts):
    """Fields `(samples, points)` in float32, at time 0 (`x`) and at time 1 (`y`)."""


def load(
    seed: int = 0,
    *,
    samples: int = SAMPLES,
    points: int = POINTS,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> BurgersSplit:
    """The data of the paper's experiment, made on first use (on `device`) and kept in the cache; split by `seed` into 1448,
    200 and 400 of 2,048, or in that proportion.

    Many samples are solved in blocks, each of which is kept, so that what was stopped goes on; `progress` is called after
    each with the number of samples that are there, and of all."""
    if not _whole(samples, 6):
        raise ValueError(f"samples must be a whole number of at least 6; a split has three parts, got {samples!r}")
    name = f"burgers-{VERSION}-{samples}-{points}"

    def make() -> store.Arrays:
        u0 = random_field(samples, points, seed=0)
        size = _BLOCK if torch.device(device).type == "cpu" else samples
        solved = []
        for low in range(0, samples, size):
            block = u0[low : low + size]

            def one(block: np.ndarray = block) -> store.Arrays:
                return {"y": solve(block, VISCOSITY, TIME, device=device).astype(np.float32)}

            def alike(arrays: store.Arrays, count: int = len(block)) -> None:
                _check_arrays(arrays, ("y",), (count, points))

            several = len(block) < samples
            solved.append((store.cached(f"{name}.part-{low}.npz", one, alike) if several else one())["y"])
            if progress is not None and several:
                progress(low + len(block), samples)
        return {"x": u0.astype(np.float32), "y": np.concatenate(solved)}

    arrays = store.cached(f"{name}.npz", make, lambda arrays: _check_arrays(arrays, ("x", "y"), (samples, points)))
    if (store.cache_folder() / f"{name}.npz").is_file():
        for part in store.cache_folder().glob(f"{name}.part-*.npz"):
            part.unlink(missing_ok=True)
    order = np.random.RandomState(seed).permutation(samples)
    train = round(samples * SPLIT[0] / SAMPLES)
    parts = np.split(order, [train, train + max(1, round(samples * SPLIT[1] / SAMPLES))])
    return BurgersSplit(*(torch.from_numpy(arrays[name][part]) for part in parts for name in ("x", "y")))


def _check_arrays(arrays: store.Arrays, names: tuple[str, ...], shape: tuple[int, int]) -> None:
    for name in names:
        array = arrays.get(name)
        if array is None or array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"its {name} is not a finite float32 array of shape {shape}")


def random_field(samples: int, points: int, seed: int = 0) -> np.ndarray:
    """Initial conditions: `u(x) = sum_k sqrt(2) 25 / ((2 pi k)^2 + 25) (a_k cos kx + b_k sin kx)`, a, b standard normal.

    Mode by mode, so that a sample is the same function on every grid (up to the modes that the grid has)."""
    if not _whole(samples, 1):
        raise ValueError(f"samples must be a whole number of at least 1, got {samples!r}")
    if not _whole(points, 16) or points % 2 or points > POINTS:
        raise ValueError(f"points must be an even number from 16 to {POINTS}, got {points!r}")
    if not _whole(seed, 0) or seed >= 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
    modes = np.arange(1, points // 2)
    draws = np.random.RandomState(seed).standard_normal((POINTS // 2 - 1, samples, 2))
    a, b = np.moveaxis(draws[: len(modes)], 2, 0)
    deviation = math.sqrt(2) * 25 / ((2 * np.pi * modes) ** 2 + 25)
    spectrum = np.zeros((samples, points // 2 + 1), dtype=complex)
    spectrum[:, 1:-1] = 0.5 * points * (deviation[:, None] * (a - 1j * b)).T
    return np.fft.irfft(spectrum, points, axis=1)


def cole_hopf(u0: np.ndarray, viscosity: float, time: float) -> np.ndarray:
    """The exact solution, as far as floating point carries it: theta spans `exp(range of int u_0 / (2 nu))`, and what that
    range takes of sixteen digits is lost. A viscosity of 0.1 leaves ten digits for fields of size 1; 0.02 leaves none."""
    u0 = _checked(u0, viscosity, time)
    N = u0.shape[1]
    k = np.fft.rfftfreq(N, 1 / N)
    mean = u0.mean(1, keepdims=True)
    spectrum = np.fft.rfft(u0 - mean, axis=1)
    potential = np.fft.irfft(np.divide(spectrum, 1j * k, out=np.zeros_like(spectrum), where=k > 0), N, axis=1)
    exponent = -potential / (2 * viscosity)
    heat = np.fft.rfft(np.exp(exponent - exponent.max(1, keepdims=True)), axis=1) * np.exp(-viscosity * k**2 * time)
    heat = heat * np.exp(-1j * k * mean * time)  # a mean carries the whole solution along
    theta, slope = np.fft.irfft(heat, N, axis=1), np.fft.irfft(1j * k * heat, N, axis=1)
    return mean - 2 * viscosity * slope / theta


def solve(
    u0: np.ndarray, viscosity: float, time: float, *, steps: int | None = None, device: str | torch.device = "cpu"
) -> np.ndarray:
    """The solution at `time` from `u0 (batch, N)` on the grid `2 pi j / N`, in float64.

    Fourier modes in space (products dealiased by the rule of two thirds), an exponential integrator of fourth order in time
    (ETDRK4, Cox and Matthews). Viscosity removes high modes, and with them the grid shrinks, to grow again where a front
    steepens; the step goes along, unless their number `steps` is given, all of one size. Where the grid cannot resolve the
    solution, at `time` or on the way there, a ValueError says so; so does a time that would take half a million steps.
    """
    if steps is not None and not _whole(steps, 1):
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    u = torch.as_tensor(_checked(u0, viscosity, time), device=device)
    state = _Spectrum(torch.fft.rfft(u, norm="forward"), u.shape[1], viscosity)
    t, taken, tail = 0.0, 0, state.tail()
    lowest, risen = tail, False
    while t < time and (steps is None or taken < steps) and not risen:
        state.adapt()
        dt = min(state.step_size(), time - t) if steps is None else time / steps
        if steps is None and taken >= 100 and (time - t) / dt > _MOST:  # by then a rough start has been smoothed
            raise ValueError(
                f"time {time} would take about {(time - t) / dt:.0e} steps of {dt:.1e} for fields of this size: expected a "
                f"time up to about {t + _MOST * dt:.3g}"
            )
        state.advance(dt)
        t, taken = t + dt, taken + 1
        tail = state.tail()
        if state.N == u.shape[1]:
            # a rough start only decays; what rises is a front that the grid cannot carry, whose traces may fade later on
            risen = not tail <= max(_RISEN, 2 * lowest)
            lowest = min(lowest, tail)
    if risen or (t > 0 and not tail <= _RESOLVED):
        allowed = f"{_RISEN:.0e} is allowed where they rise" if risen else f"{_RESOLVED:.0e} is allowed at the end"
        raise ValueError(
            f"{u.shape[1]} points do not resolve the solution with viscosity {viscosity} up to time {time}: at time {t:.3g} "
            f"its highest modes have {tail:.1e} of the largest (at most {allowed}); expected more points or more viscosity"
        )
    return state.on(u.shape[1]).cpu().numpy()


class _Spectrum:
    """Coefficients of a batch on a grid of N points, of which the modes up to N / 3 take part in products."""

    def __init__(self, coefficients: Tensor, N: int, viscosity: float):
        self.c, self.N, self.viscosity, self.largest = coefficients, N, viscosity, N
        self._coefficients: tuple[float, int, tuple[Tensor, ...]] | None = None

    @property
    def cutoff(self) -> int:
        return self.N // 3

    def adapt(self) -> None:
        """Halve the grid as long as what it would lose is rounding error; double it where a front has steepened."""
        if self.N < self.largest and self.tail() > 100 * _NEGLIGIBLE:
            self.c = torch.nn.functional.pad(self.c, (0, self.N // 2))
            self.N *= 2
            return
        while self.N >= 64 and self.N % 4 == 0:
            size = self.c.abs().amax(0)
            if float(size[self.N // 6 :].max()) > _NEGLIGIBLE * float(size.max()):
                return
            self.N //= 2
            self.c = self.c[:, : self.N // 2 + 1].clone()
            self.c[:, -1] = 0

    def tail(self) -> float:
        size = self.c.abs().amax(0)
        largest = float(size.max())
        return float(size[int(0.9 * self.cutoff) : self.cutoff + 1].max()) / largest if largest > 0 else 0.0

    def step_size(self) -> float:
        k = torch.arange(self.c.shape[1], device=self.c.device)
        fastest = float(self.on(self.N).abs().max())
        steepest = float(torch.fft.irfft(1j * k * self.c, self.N, norm="forward").abs().max())
        advection = _COURANT / max(self.cutoff * fastest, 1e-12)
        # while high modes are there, they decay within 1 / (nu k^2); the step that resolves the slopes is the limit later on
        return min(max(advection, 1e-7), _STEP / max(steepest, fastest, 1e-2))

    def on(self, N: int) -> Tensor:
        """The field on a grid of N points."""
        return torch.fft.irfft(self.c, N, norm="forward")

    def advance(self, dt: float) -> None:
        E, E2, Q, f1, f2, f3 = self._etdrk4(dt)
        v = self.c
        Nv = self._transport(v)
        a = E2 * v + Q * Nv
        Na = self._transport(a)
        b = E2 * v + Q * Na
        Nb = self._transport(b)
        c = E2 * a + Q * (2 * Nb - Nv)
        Nc = self._transport(c)
        self.c = E * v + Nv * f1 + 2 * (Na + Nb) * f2 + Nc * f3

    def _transport(self, c: Tensor) -> Tensor:
        """`-1/2 (u^2)_x`; modes above two thirds are left out of the product."""
        k = torch.arange(c.shape[1], device=c.device)
        kept = torch.where(k <= self.cutoff, c, 0)
        square = torch.fft.rfft(torch.fft.irfft(kept, self.N, norm="forward").square(), norm="forward")
        return torch.where(k <= self.cutoff, -0.5j * k * square, 0)

    def _etdrk4(self, dt: float) -> tuple[Tensor, ...]:
        """The integrator's coefficients. Written out they cancel near k = 0, so they are means over a circle around each
        value (Kassam and Trefethen)."""
        if self._coefficients is not None and self._coefficients[:2] == (dt, self.N):
            return self._coefficients[2]
        k = torch.arange(self.N // 2 + 1, dtype=torch.float64, device=self.c.device)
        z = -self.viscosity * k**2 * dt
        angles = math.pi * (torch.arange(32, dtype=torch.float64, device=self.c.device) + 0.5) / 32
        r = z[:, None] + torch.exp(1j * angles)
        e = torch.exp(r)
        Q = dt * ((torch.exp(r / 2) - 1) / r).mean(1).real
        f1 = dt * ((-4 - r + e * (4 - 3 * r + r**2)) / r**3).mean(1).real
        f2 = dt * ((2 + r + e * (-2 + r)) / r**3).mean(1).real
        f3 = dt * ((-4 - 3 * r - r**2 + e * (4 - r)) / r**3).mean(1).real
        values = torch.exp(z), torch.exp(z / 2), Q, f1, f2, f3
        self._coefficients = dt, self.N, values
        return values


def _whole(value: object, least: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def _checked(u0: np.ndarray, viscosity: float, time: float) -> np.ndarray:
    """The fields in float64; a ValueError that names what is wrong."""
    array = np.asarray(u0)
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 16 or array.shape[1] % 2:
        raise ValueError(f"expected u0 (batch, N) with an even N of at least 16, got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"u0 must hold real numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError("u0 has NaN or infinite values")
    if not (isinstance(viscosity, Real) and math.isfinite(viscosity) and viscosity > 0):
        raise ValueError(f"viscosity must be positive and finite, got {viscosity!r}")
    if not (isinstance(time, Real) and math.isfinite(time) and time >= 0):
        raise ValueError(f"time must be zero or positive and finite, got {time!r}")
    return np.ascontiguousarray(array, dtype=np.float64)
