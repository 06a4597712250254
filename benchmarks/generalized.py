"""What does the generalised squared loss cost, against one inversion for every class and against the plain squared loss?

    python benchmarks/generalized.py [--device cuda] [--quick]

All do the same work: from a batch of features and labels in float32 and the old layer (with bias) to the new layer, in
place. "squared" is this package's solve of the squared loss on the same one-hot labels. "inverses" is the paper's eq. 32 as
it is printed, a product over the whole batch and an inverse for every class. "solves" does without what that repeats: one
product for all classes, corrected by each class's own samples, and a Cholesky solve for each, as many at a time as fit into
memory. Both of these are float32 throughout; ours solves in float64. On a GPU ours is also timed as a captured graph.
"""

from __future__ import annotations

import torch

import closedform as cf
from common import arguments, captured, interleaved, save

LAM, K, M = 1e3, 5.0, 2.0
AT_ONCE = 2**30  # bytes of class systems that "solves" factors together


def sides(n: int, d: int, classes: int, device: str) -> dict:
    g = torch.Generator(device).manual_seed(0)
    phi = torch.randn(n, d, generator=g, device=device)
    labels = torch.randint(classes, (n,), generator=g, device=device)
    general, plain = (
        cf.ClosedFormLinear(d, classes, rule=cf.Proximal(LAM), loss=loss, device=device)
        for loss in (cf.GeneralizedSquared(K, M), cf.OneHotSquared())
    )
    W = torch.zeros(classes, d + 1, device=device)
    ones, eye = torch.ones(n, 1, device=device), torch.eye(d + 1, device=device)
    group = max(1, AT_ONCE // (4 * (d + 1) ** 2))

    def inverses() -> None:
        X = torch.cat([phi, ones], 1)
        for c in range(classes):
            own = (labels == c).float()
            z = 1 + (K**0.5 - 1) * own
            Xc = z[:, None] * X
            W[c] = torch.linalg.inv(Xc.T @ Xc + LAM * eye) @ (Xc.T @ (z * M * own) + LAM * W[c])

    def solves() -> None:
        X = torch.cat([phi, ones], 1)
        G = X.T @ X + LAM * eye
        right = K * M * (X.T @ torch.nn.functional.one_hot(labels, classes).float()) + LAM * W.T
        members = [X[labels == c] for c in range(classes)]
        for low in range(0, classes, group):
            systems = G + (K - 1) * torch.stack([rows.T @ rows for rows in members[low : low + group]])
            L = torch.linalg.cholesky_ex(systems)[0]
            W[low : low + group] = torch.cholesky_solve(right.T[low : low + group, :, None], L)[:, :, 0]

    return {
        "ours": lambda: general.solve(phi, labels),
        "squared": lambda: plain.solve(phi, labels),
        "inverses": inverses,
        "solves": solves,
        "layers": lambda: (general, W),
    }


def main() -> None:
    args = arguments(__doc__ or "")
    gpu = args.device == "cuda"
    cells = [(4096, 512, 1000), (1024, 512, 1000), (256, 512, 1000), (4096, 512, 100), (128, 512, 100), (4096, 512, 10)]
    if not gpu:  # the inverses take minutes
        cells = [(4096, 512, 1000), (256, 512, 1000), (4096, 512, 100), (128, 512, 100)]
    if args.quick:
        cells = [(256, 64, 100), (32, 64, 10)]
    rows = []
    print(f"{'n':>5} {'d':>5} {'C':>5} | {'ours':>8} {'squared':>8} {'inverses':>9} {'solves':>8} ms | ratios")
    for n, d, classes in cells:
        functions = sides(n, d, classes, args.device)
        head, theirs = functions.pop("layers")()
        slow = {name: functions.pop(name) for name in ("inverses", "solves")}
        difference = 0.0
        for function in slow.values():  # from the same old layer to the same new one
            head.reset_parameters()
            theirs.zero_()
            functions["ours"]()
            function()
            difference = max(difference, float((head.weight - theirs[:, :d]).norm() / theirs.norm()))
        times = interleaved(functions, args.device, seconds=1.0 if not gpu else 0.3)
        times |= interleaved(slow, args.device, seconds=0.0, least=3, warm=1)
        ours, squared, inverses, solves = (times[k]["median_ms"] for k in ("ours", "squared", "inverses", "solves"))
        row = {"n": n, "d": d, "classes": classes, "k": K, **times, "difference": difference}
        row |= {"inverses_over_ours": inverses / ours, "solves_over_ours": solves / ours}
        row["ours_over_squared"] = ours / squared
        extra = ""
        if gpu:
            graphs = {name: captured(function) for name, function in functions.items()}
            row["captured"] = interleaved(graphs, args.device, seconds=0.2)
            one, other = (row["captured"][k]["median_ms"] for k in ("ours", "squared"))
            row["captured_ours_over_squared"] = one / other
            extra = f" | captured {one:.3f}, {one / other:.2f} of squared"
        rows.append(row)
        line = f"{n:5d} {d:5d} {classes:5d} | {ours:8.3f} {squared:8.3f} {inverses:9.1f} {solves:8.1f}    |"
        ratios = f"inverses {inverses / ours:.1f}, solves {solves / ours:.1f}, squared {squared / ours:.2f} of ours"
        print(f"{line} {ratios}{extra}  (differ by {difference:.0e})", flush=True)
    save(args, "generalized", "milliseconds of one solve of the generalised squared loss, float32, with bias", rows)


if __name__ == "__main__":
    main()
