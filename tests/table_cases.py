"""Tables, and the command line run on them, for the tests of estimators and of `closedform train`."""

import sys
import warnings

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from typer.testing import CliRunner

from closedform.cli import application

FAST = {"max_iter": 15, "random_state": 0}  # a short fit
RUN = [sys.executable, "-c", "from closedform.cli import main; main()"]
GOOD = "area,rooms,price\n" + "".join(f"{i}.5,{i % 4},{3 * i}.25\n" for i in range(30))


def homes(n=200, seed=0):
    g = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "area": g.uniform(20, 200, n).round(1),
            "rooms": g.integers(1, 7, n),
            "district": g.choice(["north", "söuth", "east"], n),
            "zip": g.choice([10115, 10117, 10119], n),
        }
    )
    table["price"] = 3 * table.area + 10 * table.rooms + 60 * (table.district == "east") + g.normal(0, 3, n)
    table["price"] = table["price"].round(2)
    table.loc[g.choice(n, n // 10, replace=False), "area"] = np.nan
    table.loc[3, "district"] = None
    return table


def command(*arguments):
    """Exit code, and what was said on stderr (in the process: much faster than a new one)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(application(), [str(a) for a in arguments])
    if isinstance(result.exception, (ValueError, FileNotFoundError)):
        return 2, str(result.exception)  # as `closedform.cli.main` does
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def table(n=240, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 4)) * [1, 100, 0.01, 1] + [0, 1e4, 0, 5]
    z = (X - [0, 1e4, 0, 5]) / [0.6, 60, 0.006, 0.6]
    return X, 1e3 + 50 * (np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2])


def classes(n=240, seed=0, k=3):
    X, y = make_classification(n, 6, n_informative=4, n_classes=k, class_sep=1.5, random_state=seed)
    return X, np.array(["red", "green", "blue", "grey"])[y]


def everyday(n=400, seed=0):
    """A table as people have them: units, dates, truths, gaps, identifiers and columns of no use."""
    g = np.random.default_rng(seed)
    days = pd.date_range("2021-01-01", periods=n, freq="2D")
    return pd.DataFrame(
        {
            "area": [f"{value:.1f} m²" for value in g.uniform(20, 200, n)],
            "cost": [f"${value:,.0f}" for value in g.uniform(500, 20_000, n)],
            "share": [f"{value:.0f} %" for value in g.uniform(0, 100, n)],
            "rooms": pd.Series(g.integers(1, 7, n)).astype(float).mask(pd.Series(range(n)) % 9 == 4),
            "lift": g.random(n) < 0.5,
            "garden": pd.Series(np.where(g.random(n) < 0.5, "true", "False")).mask(pd.Series(range(n)) % 9 == 4),
            "sold": days.strftime("%Y-%m-%d"),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(n) * 7, unit="h"),
            "district": g.choice(["north", "söuth", "east"], n),
            "grade": pd.Categorical(g.integers(1, 5, n)),
            "number": np.arange(1, n + 1),
            "agent_id": g.integers(0, 10**6, n),
            "note": [f"note {k} of {n}" for k in range(n)],
            "empty": [None] * n,
            "same": "x",
        }
    )


def daily_sales(seed=0, years=3):
    """Daily sales of three stores: a trend, the day of the week, a season, and noise of deviation 5."""
    g = np.random.default_rng(seed)
    days = pd.date_range("2021-01-01", periods=365 * years)
    weekday = np.array([0, -5, 2, 4, 15, 35, 20])[days.day_of_week]
    parts = []
    for k, store in enumerate(["north", "south", "east"]):
        season = 30 * np.sin(2 * np.pi * days.day_of_year / 365.25 + k) + 40 * (days.month == 12)
        sales = 200 + 60 * k + 25 * np.arange(len(days)) / 365 + (1 + 0.3 * k) * weekday + season
        parts.append(pd.DataFrame({"date": days, "store": store, "sales": sales + g.normal(0, 5, len(days))}))
    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)
