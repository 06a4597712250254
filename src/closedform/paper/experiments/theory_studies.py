"""The studies behind docs/theory.md: each takes `quick` and returns its numbers, for the JSON and the figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import theory
from ...head import ClosedFormLinear
from ...solver.rules import Kalman, Proximal, Rule
from ...theory import critical_points, finite, flow, kalman, ntk

Study = dict[str, Any]


def normal(seed: int) -> Callable[..., Tensor]:
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)


# ---- Theorem 5.1, Propositions 3.1 and 4.1 -------------------------------------------------------


def non_convexity(quick: bool) -> Study:
    """Along a segment, and second derivatives at its middle."""
    draw = normal(0)
    Y = draw(12, 2)
    total = float(Y.square().sum())
    start, end = critical_points.segment(Y, 3)
    s = torch.linspace(0, 1, 41, dtype=torch.float64)
    result: Study = {"s": s}
    for name, beta in (("plain", 0.0), ("ridge", 0.5)):
        line = torch.stack([critical_points.loss(start + a * (end - start), Y, beta) for a in s]) / total
        middle = (start + end) / 2
        phi = draw(12, 3)
        difference = _finite_differences(lambda p, beta=beta: critical_points.loss(p, Y, beta), phi)
        gradient = critical_points.gradient(phi, Y, beta)
        result[name] = {
            "beta": beta,
            "line": line,
            "middle": float(line[20]),
            "ends": float((line[0] + line[-1]) / 2),
            "gradient_in_the_middle": float(critical_points.gradient(middle, Y, beta).norm()),
            "gradient_error": float((gradient - difference).norm() / gradient.norm()),
        }
    true, held = theory.hessians((start + end) / 2, Y, 0.5)
    result["hessian"] = {
        "true_smallest": float(torch.linalg.eigvalsh(true)[0]),
        "true_largest": float(torch.linalg.eigvalsh(true)[-1]),
        "held_largest": float(torch.linalg.eigvalsh(held).abs().max()),
    }
    return result


def _finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    shifts = step * torch.eye(at.numel(), dtype=at.dtype).view(-1, *at.shape)
    values = [(function(at + shift) - function(at - shift)) / (2 * step) for shift in shifts]
    return torch.stack(values).view_as(at)


def envelope(quick: bool) -> Study:
    torch.manual_seed(0)
    draw = normal(0)
    net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh()).double()
    x, Y, W = draw(64, 5), draw(64, 3), draw(3, 16)
    return {
        "ridge": theory.envelope_gap(net, x, Y, 1.0).gap,
        "proximal": theory.envelope_gap(net, x, Y, 1.0, W).gap,
        "off": theory.envelope_gap(net, x, Y, 1.0, W, off=0.1).gap,
    }


# ---- Theorem 5.2 ---------------------------------------------------------------------------------


def _wide(n: int = 12, outputs: int = 2) -> tuple[Tensor, Tensor]:
    """Inputs on a sphere, so that no direction of them is special, and random targets."""
    draw = normal(0)
    x = draw(n, 3)
    return x / x.norm(dim=1, keepdim=True) * 3**0.5, draw(n, outputs)


def kernel_flow(quick: bool) -> Study:
    x, Y = _wide()
    starts = 2 if quick else 6
    result: Study = {"starts": starts, "runs": starts * len(ntk.DUALS), "d": 3, "n": len(x)}
    drift, decrease, missing = 0.0, 0.0, 0.0
    for activation in ntk.DUALS:
        k = ntk.kernels(x, 3, activation)
        paths = [
            flow.integrate(ntk.features(k.nngp, 3, torch.Generator().manual_seed(seed)), Y, k.ntk, 1000.0, points=60)
            for seed in range(starts)
        ]
        shares = [path.attained for path in paths]
        drift = max([drift, *(path.drift for path in paths)])
        decrease = max([decrease, *(float((-share.diff()).max()) for share in shares)])
        missing = max([missing, *(float(path.missing[-1]) for path in paths)])
        result[activation] = {
            "t": paths[0].t,
            "shares": shares,
            "smallest_eigenvalue": float(torch.linalg.eigvalsh(k.nngp)[0]),
        }
    k = ntk.kernels(x, 3, "erf")
    phi = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0))
    result |= {"largest_drift": drift, "largest_decrease": max(0.0, decrease), "largest_missing": missing}
    return result | {"factor": _factor(phi, Y, k.ntk), **_beyond(x, k, quick), "escape": _escape(Y, k, quick)}


def _factor(phi: Tensor, Y: Tensor, K: Tensor) -> float:
    """`d |Y_star|^2 / dt` over `tr(A B)`, by a central difference along the flow: 2 by the paper's eq. 50."""
    v = flow.velocity(phi, Y, K)
    up, down = (critical_points.split(phi + h * v, Y).attainable.square().sum() for h in (1e-5, -1e-5))
    return float(up - down) / 2e-5 / (flow.rate(phi, Y, K) / 4)


def _beyond(x: Tensor, k: ntk.Kernels, quick: bool) -> Study:
    """Outside the theorem: fewer features than the rank of Y, and more than samples."""
    Y = normal(7)(len(x), 3)
    S = torch.linalg.svdvals(Y) ** 2
    phi = ntk.features(k.nngp, 2, torch.Generator().manual_seed(0))
    end = flow.integrate(phi, Y, k.ntk, 3000.0, points=5).attained[-1]
    wide = ntk.features(k.nngp, 15, torch.Generator().manual_seed(0))
    return {
        "fewer_features": {"attained": float(end), "best_possible": float(S[:2].sum() / S.sum())},
        "more_features_missing": float(critical_points.split(wide, Y).unattainable.square().sum() / Y.square().sum()),
    }


def _escape(Y: Tensor, k: ntk.Kernels, quick: bool) -> Study:
    """How long a start beside a bad critical point takes to attain half of what is missing."""
    noise = ntk.features(k.nngp, 3, torch.Generator().manual_seed(0))
    sizes = [1e-1, 1e-3] if quick else [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
    result: Study = {"size": sizes}
    for name, bad in (("orthogonal", critical_points.orthogonal(Y, 3)), ("saddle", critical_points.saddle(Y, 3, 1))):
        share = critical_points.split(bad, Y).share
        half, end = [], []
        for size in sizes:
            path = flow.integrate(bad + size * noise, Y, k.ntk, 3000.0, points=400)
            attained = path.attained
            half.append(float(path.t[int((attained > (1 + share) / 2).nonzero()[0])]))
            end.append(float(path.missing[-1]))
        result[name] = {"half": half, "missing": max(end)}
    return result


def finite_width(quick: bool) -> Study:
    """Networks of growing width beside the flow of the limit, and their kernels beside the limit's: one hidden layer, eight
    samples, up to t = 3. erf on more and wider networks than relu and gelu."""
    x, Y = _wide(8, 1)
    until = 3.0
    result: Study = {"n": len(x), "until": until}
    for activation in ("erf", "relu", "gelu"):
        widths = [16, 64, 256] if quick else [16, 64, 256, 1024, 4096] if activation == "erf" else [16, 64, 256, 1024]
        seeds = 3 if quick else 8 if activation == "erf" else 6
        result[activation] = _widths(x, Y, activation, widths, seeds, flow.times(until, 12, 0.01))
    return result


def _widths(x: Tensor, Y: Tensor, activation: str, widths: list[int], seeds: int, t: Tensor) -> Study:
    limit = ntk.kernels(x, 2, activation)
    distances, kernel_errors = [], []
    for width in widths:
        net = finite.FiniteNetwork((3, width, 2), activation)
        drawn = [net.draw(torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        distances.append([finite.distance_to_limit(net, p, x, Y, limit.ntk, t) for p in drawn])
        kernels = (net.tangent_kernel(p, x) for p in drawn)
        kernel_errors.append([float((K - limit.ntk).norm() / limit.ntk.norm()) for K in kernels])
    each = np.log(np.array(distances))
    logs, slopes = each.mean(1), np.polyfit(np.log(widths), each, 1)[0]  # a slope for every seed
    return {
        "widths": widths,
        "seeds": seeds,
        "distance": distances,
        "kernel": kernel_errors,
        "slope": float(slopes.mean()),
        "slope_error": float(slopes.std(ddof=1) / seeds**0.5),
        "narrowest": float(np.exp(logs[0])),
        "widest": float(np.exp(logs[-1])),
    }


# ---- Theorem 5.3 ---------------------------------------------------------------------------------


def one_step(quick: bool) -> Study:
    """Random problems of every shape and spectrum, each at the best rate and at a random one."""
    count = 60 if quick else 1000
    draw, uniform = normal(0), np.random.default_rng(0)
    points, tight, excess = [], 0.0, -math.inf
    for _ in range(count):
        n, d, o = uniform.integers(1, 25, 3)
        phi, Y, W = draw(n, d), draw(n, o), draw(o, d)
        phi = phi * torch.logspace(0, -2 * uniform.random(), d, dtype=torch.float64)
        step = theory.one_step(phi, Y, W)
        rate = step.learning_rate * 2 * uniform.random()
        gradient = 2 * (phi @ W.T - Y).T @ phi
        before, after = ((Y - phi @ V.T).square().sum() for V in (W, W - rate * gradient))
        ratio = float(before - after) / step.gain
        tight = max(tight, abs(step.ratio / step.bound - 1))
        excess = max(excess, ratio / step.bound - 1)
        points.append((step.bound, ratio))
    bounds = np.array(points)[:, 0]
    return {
        "count": count,
        "largest_excess": excess,
        "largest_slack_at_best_rate": tight,
        "median_bound": float(np.median(bounds)),
        "smallest_bound": float(bounds.min()),
        "points": points[:250],
    }


# ---- Appendix B ----------------------------------------------------------------------------------


def kalman_filter(quick: bool) -> Study:
    """A last layer that walks: the library's heads follow it, and the recursions say beforehand how well."""
    model = kalman.StateSpaceModel(noise=0.25, step=0.01)
    T, n, d, o = (60, 4, 6, 50) if quick else (300, 4, 6, 400)
    g = torch.Generator().manual_seed(0)
    walk = model.simulate(torch.randn(T, n, d, generator=g, dtype=torch.float64), o, g)
    burn = T // 6
    lams = [float(v) for v in np.geomspace(1, 100, 9 if quick else 25)]
    predicted = [_trace(model.predict(walk.phi, lam))[burn:].mean().item() for lam in lams]
    best = lams[int(np.argmin(predicted))]
    rules: dict[str, tuple[Rule, float | None]] = {
        "full": (Kalman(forget=1.0, drift=model.q, lam=model.noise / model.prior), None),
        "collapsed": (Proximal(model.lam), model.lam),
        "best_lambda": (Proximal(best), best),
    }
    result: Study = {"lam": model.lam, "best_lam": best, "lams": lams, "predicted_by_lam": predicted, "outputs": o}
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    result["levels"] = levels
    for name, (rule, lam) in rules.items():
        covariance = model.predict(walk.phi, lam)
        belief = covariance if lam is None else _belief(model, walk.phi, lam)
        error, errors, variances = _follow(rule, walk, model, belief, burn)
        result[name] = {
            "error": error,
            "prediction": _trace(covariance),
            "measured": float(error[burn:].mean()),
            "predicted": float(_trace(covariance)[burn:].mean()),
            "coverage": kalman.coverage(errors, variances, levels),
            **{
                f"covers_{level}": float(kalman.coverage(errors, variances, torch.tensor([level / 100])))
                for level in (50, 80, 95)
            },
        }
    result["unequal"] = _unequal(model, walk.phi, burn, lams)
    full = result["full"]
    for name in ("collapsed", "best_lambda"):
        result[name]["measured_over_full"] = result[name]["measured"] / full["measured"]
        result[name]["predicted_over_full"] = result[name]["predicted"] / full["predicted"]
    return result


def _unequal(model: kalman.StateSpaceModel, phi: Tensor, burn: int, lams: list[float]) -> Study:
    """The same with features whose scales span a decade: one lambda cannot suit them all. Predictions only."""
    phi = phi * torch.logspace(0, -1, phi.shape[2], dtype=torch.float64)

    def error(lam: float | None) -> float:
        return float(_trace(model.predict(phi, lam))[burn:].mean())

    full = error(None)
    return {
        "paper_over_full": error(model.lam) / full,
        "best_over_full": min(error(lam) for lam in lams) / full,
    }


def _trace(covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=1, dim2=2).sum(1)


def _belief(model: kalman.StateSpaceModel, phi: Tensor, lam: float) -> Tensor:
    """What the collapsed filter would state as its covariance after each batch, were it asked."""
    eye = torch.eye(phi.shape[2], dtype=torch.float64)
    return torch.stack([model.noise * torch.linalg.inv(lam * eye + X.T @ X) for X in phi])


def _follow(
    rule: Rule, walk: kalman.Walk, model: kalman.StateSpaceModel, belief: Tensor, burn: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A head through the whole walk: squared error of its weights after each batch, and errors and stated variances of its
    predictions at new inputs. Kalman states its own; for another rule it is what `belief` and the true noise make of it."""
    o, d = walk.W.shape[1:]
    head = ClosedFormLinear(d, o, False, rule=rule, dtype=torch.float64)
    draw = normal(1)
    weights, errors, variances = [], [], []
    for t, (phi, Y) in enumerate(zip(walk.phi, walk.Y)):
        head.solve(phi, Y)
        weights.append((head.weight - walk.W[t]).square().sum(1).mean())
        X = draw(2, d)
        errors.append(X @ (walk.W[t] - head.weight).T + model.noise**0.5 * draw(2, o))
        if isinstance(rule, Kalman):
            variances.append(head.variance(X))  # with a noise level that the head has estimated
        else:
            variances.append(kalman.spread(X, belief[t], model.noise)[:, None].expand(2, o))
    return torch.stack(weights), torch.stack(errors[burn:]), torch.stack(variances[burn:])


STUDIES: dict[str, Callable[[bool], Study]] = {
    "non_convexity": non_convexity,
    "envelope": envelope,
    "kernel_flow": kernel_flow,
    "finite_width": finite_width,
    "one_step": one_step,
    "kalman": kalman_filter,
}
