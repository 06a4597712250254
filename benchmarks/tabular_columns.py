"""Columns as people have them: dates and numbers with units as texts, against the same by hand and against categories.

    python benchmarks/tabular_columns.py [--quick]

Made tables, all defaults; RMSE on a fifth of the rows, a mean over seeds 0 to 2, each with another table. Stopped at any
time, the same command goes on after the last table that was finished.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from closedform.estimators import ClosedFormRegressor
from common import RESULTS, Kept

SEEDS = 3


def daily_sales(g: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray, str]:
    """Three stores, three years: a trend, the day of the week and a season; noise of deviation 5."""
    days = pd.DatetimeIndex(np.tile(pd.date_range("2021-01-01", periods=1095), 3))
    store = np.repeat(np.arange(3), 1095)
    weekday = np.array([0, -5, 2, 4, 15, 35, 20])[days.day_of_week] * (1 + 0.3 * store)
    season = 30 * np.sin(2 * np.pi * days.day_of_year / 365.25 + store) + 40 * (days.month == 12)
    years = (days.year - 2021) + days.day_of_year / 365
    y = 200 + 60 * store + 25 * years + weekday + season + g.normal(0, 5, len(days))
    stores = pd.get_dummies(pd.Series(store))
    phase = 2 * np.pi * days.day_of_year.to_numpy() / 365.25
    waves = pd.DataFrame({"sin": np.sin(phase), "cos": np.cos(phase), "years": np.asarray(years)})
    parts = [pd.get_dummies(pd.Series(days.day_of_week)), pd.get_dummies(pd.Series(days.month))]
    by_hand = pd.concat([waves, *parts, stores], axis=1)
    texts = pd.DataFrame({"date": days.strftime("%Y-%m-%d"), "store": np.array(["north", "south", "east"])[store]})
    return texts, by_hand, np.asarray(y), "date"


def hourly_counts(g: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray, str]:
    """Four months of hours: the hour, the day of the week and the weather; noise of deviation 5."""
    hours = pd.date_range("2024-03-01", periods=24 * 120, freq="h")
    warm = g.normal(15, 6, len(hours))
    weekend = np.asarray(hours.day_of_week >= 5)
    rush = 60 * np.exp(-(((hours.hour - 8) / 2) ** 2)) + 80 * np.exp(-(((hours.hour - 17) / 2.5) ** 2))
    y = 20 + np.where(weekend, 0.3 * np.asarray(rush) + 25, rush) + 2 * warm + g.normal(0, 5, len(hours))
    phase = 2 * np.pi * hours.hour.to_numpy() / 24
    waves = pd.DataFrame({f"{f.__name__}{k}": f(k * phase) for k in (1, 2) for f in (np.sin, np.cos)})
    numbers = pd.DataFrame({"trend": np.arange(len(hours)) / len(hours), "warm": warm})
    by_hand = pd.concat([numbers, waves, pd.get_dummies(pd.Series(hours.day_of_week))], axis=1)
    texts = pd.DataFrame({"time": hours.strftime("%d.%m.%Y %H:%M"), "warm": warm})
    return texts, by_hand, y, "time"


def homes(g: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray, str]:
    """Prices that go with the area, written with its unit, and with the costs, written in dollars."""
    n = 1500
    area, cost, rooms = g.uniform(20, 200, n).round(1), g.uniform(50, 3000, n).round(), g.integers(1, 7, n)
    y = 3000 * area * (1 + 0.1 * np.sin(area / 20)) - 20 * cost + 1e4 * rooms + g.normal(0, 2e4, n)
    by_hand = pd.DataFrame({"area": area, "cost": cost, "rooms": rooms})
    texts = by_hand.assign(area=[f"{v} m²" for v in area], cost=[f"${v:,.0f}" for v in cost])
    return texts, by_hand, y, "area,cost"


Maker = Callable[[np.random.Generator], tuple[pd.DataFrame, pd.DataFrame, np.ndarray, str]]
TABLES: dict[str, Maker] = {
    "daily sales, a date": daily_sales,
    "hourly counts, a time": hourly_counts,
    "homes, m² and $": homes,
}


def errors(name: str, seed: int) -> tuple[int, dict[str, float]]:
    g = np.random.default_rng(seed)
    texts, by_hand, y, written = TABLES[name](g)
    order = g.permutation(len(y))
    first, second = order[: len(y) * 4 // 5], order[len(y) * 4 // 5 :]
    ways = {
        "as it is": texts,
        "numbers by hand": pd.DataFrame(by_hand.to_numpy(dtype=float)),
        "texts as categories": texts.astype(dict.fromkeys(written.split(","), "category")),
    }
    by_way = {}
    for way, X in ways.items():
        model = ClosedFormRegressor(random_state=seed).fit(X.iloc[first], y[first])
        by_way[way] = float(np.sqrt(np.mean((model.predict(X.iloc[second]) - y[second]) ** 2)))
    return len(first), by_way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest table, one seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    cells = [(name, seed) for seed in range(SEEDS) for name in TABLES]
    cells = [("homes, m² and $", 0)] if args.quick else cells
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Column ")  # remarks about units
    kept = Kept(args.out / "tabular_columns-cpu.json", "columns as people have them", ("problem", "seed"))
    left = [cell for cell in cells if kept.get(*cell) is None]
    for at, (name, seed) in enumerate(left, 1):
        rows, by_way = errors(name, seed)
        kept.add({"problem": name, "seed": seed, "rows": rows, "error": by_way})
        print(f"{at}/{len(left)}", name, seed, {k: f"{v:.3g}" for k, v in by_way.items()}, flush=True)


if __name__ == "__main__":
    main()
