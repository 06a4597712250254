"""The report: what it chooses, what it shows, and that a browser draws it with nothing but the file."""

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from closedform.paper.report import page, panels, spec, static, summary, write
from closedform.paper.sweeps import results

SIZES = (32, 256, 1024, 2048)
SAMPLES, EPOCHS, MARKS = 104_664, 50, 55
MISSING = "\N{EN DASH}"
HOSTILE = "</script><script>alert(1)</script>"

METHODS = (
    spec.Method("l2", "l2"),
    spec.Method("ridge", "ridge"),
    spec.Method("proximal", "proximal"),
    spec.Method("proximal-auto", "proximal, λ by rule", ours=True),
    spec.Method("proximal-follow", "proximal, β follows", ours=True),
    spec.Method("kalman", "Kalman"),
)
FLOOR = {
    "l2": 0.03,
    "ridge": 0.024,
    "proximal": 0.02,
    "proximal-auto": 0.019,
    "proximal-follow": 0.017,
    "kalman": 0.021,
}
CURVES = spec.Curves(
    "Learning curves",
    "Test error at the best setting of each method; bands are 95 % confidence intervals over three seeds.",
)
EXPERIMENT = spec.Experiment(
    name="made-up",
    title="Solved last layers on a made-up regression",
    text="Numbers drawn from a formula, in the shape of a real sweep.\n\nEvery method has the same network and data.",
    metric="test",
    select="validation",
    label="test MSE",
    methods=METHODS,
    by=("optimizer", "batch_size"),
    settings=("lr", "lam", "beta", "forget"),
    figures=(
        CURVES,
        spec.Sensitivity(
            "Sensitivity to λ", "Proximal, at the best of its other settings.", "lam", {"method": ["proximal"]}
        ),
        spec.Sensitivity(
            "Sensitivity to β", "Proximal, at the best of its other settings.", "beta", {"method": ["proximal"]}
        ),
    ),
    environment={"device": "NVIDIA H200", "torch": "2.13.0", "closedform": "0.1.0"},
)


def grid(method):
    lams = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    for lr in (1e-4, 1e-3, 1e-2):
        if method == "l2":
            yield {"lr": lr}
        elif method == "ridge":
            yield from ({"lr": lr, "lam": lam} for lam in lams[1:])
        elif method == "proximal":
            yield from ({"lr": lr, "lam": lam, "beta": beta} for lam in lams for beta in (0.01, 0.1, 1.0, 10.0))
        elif method == "kalman":
            yield from ({"lr": lr, "forget": forget} for forget in (0.9, 0.99, 0.999))
        else:
            yield from ({"lr": lr, "beta": beta} for beta in (0.01, 0.1, 1.0))


def sweep(sizes=SIZES, optimizers=("sgd", "adam"), methods=METHODS, seeds=3):
    """A table like that of a real sweep: curves that fall to a floor that depends on the setting, with noise."""
    random = np.random.default_rng(0)
    parts = []
    for optimizer in optimizers:
        for size in sizes:
            last = SAMPLES * EPOCHS // size
            steps = np.unique(np.linspace(last / MARKS, last, MARKS).astype(int))
            steps = np.concatenate([[1], steps])
            for method in methods:
                for setting in grid(method.key):
                    off = abs(math.log10(setting["lr"] / 1e-3)) + 0.3 * abs(
                        math.log10(max(setting.get("lam", 0.1), 1e-5) / 0.1)
                    )
                    off += 0.4 * abs(math.log10(setting.get("beta", 0.1) / 0.1)) + 20 * abs(
                        setting.get("forget", 0.99) - 0.99
                    )
                    floor = (
                        FLOOR[method.key] * (1 + 0.6 * off) * (1.3 if optimizer == "sgd" else 1) * (size / 256) ** 0.15
                    )
                    for seed in range(seeds):
                        done = steps / last
                        mean = floor + 0.9 * np.exp(-done * 12 / (1 + off)) / (1 + 30 * done)
                        curve = mean * np.exp(
                            random.normal(0, 0.05, len(steps)) * (1 - 0.7 * done) + random.normal(0, 0.03)
                        )
                        if method.key == "ridge" and size == 32:
                            curve = np.where(done > 0.1, np.inf, curve * np.exp(150 * done))
                        parts.append(pd.DataFrame({
                            "method": method.key, "optimizer": optimizer, "batch_size": size,
                            **{name: setting.get(name, np.nan) for name in ("lr", "lam", "beta", "forget")},
                            "seed": seed, "step": steps, "validation": curve * 0.98, "test": curve,
                            "wall_s": steps * 0.01, "device": "cuda",
                        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def save(folder, table, experiment=EXPERIMENT):
    results.save(table, folder)
    experiment.save(folder)
    return folder


def small(test, *, validation=None, seeds=None, **columns):
    """A table of one row a value, all at one optimizer and batch size; what is not given is the same everywhere."""
    count = len(test)
    given = {
        "method": "l2",
        "optimizer": "sgd",
        "batch_size": 32,
        "lr": 0.1,
        "lam": np.nan,
        "beta": np.nan,
        "forget": np.nan,
    }
    given |= {"seed": seeds or [0] * count, "step": 1, "validation": validation or test, "test": test} | columns
    return pd.DataFrame({name: value if isinstance(value, list) else [value] * count for name, value in given.items()})


def read(folder, table, **changes):
    return panels.read(save(folder, table, dataclasses.replace(EXPERIMENT, **changes)))


def lines(figure, panel=0):
    return {line.key: line for line in figure.panels[panel].lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("results"), sweep())


# ---- what is computed


def test_settings_are_chosen_by_validation_not_by_test(tmp_path):
    table = small([0.5, 0.1], validation=[0.2, 0.3], lr=[0.1, 0.01])
    table, experiment = read(tmp_path, table)
    (line,) = panels.figures(table, experiment)[0].panels[0].lines
    assert (line.y, line.settings) == ((0.5,), ("lr 0.1",))
    (facet,) = summary.best_settings(table, experiment)
    assert facet.best.final == 0.5
    assert facet.best.settings == ("0.1", MISSING, MISSING, MISSING)


def test_bands_are_intervals_over_the_seeds_of_the_best_setting(tmp_path):
    values = [0.2, 0.3, 0.5]
    table = pd.concat([small(values, seeds=[0, 1, 2]), small([9.0] * 3, seeds=[0, 1, 2], lr=1.0)])
    (line,) = panels.figures(*read(tmp_path, table))[0].panels[0].lines
    assert line.y == pytest.approx((1 / 3,))
    assert line.half_width == pytest.approx((4.303 * np.std(values, ddof=1) / math.sqrt(3),), rel=1e-4)
    assert line.seeds == 3


def test_one_seed_has_no_band(tmp_path):
    table, experiment = read(tmp_path, small([0.2]))
    (line,) = panels.figures(table, experiment)[0].panels[0].lines
    assert line.half_width == (None,)
    facets = summary.best_settings(table, experiment)
    assert facets[0].entries[0].shown == "0.2"
    assert "One seed each" in summary.sentence(facets, experiment)


def falling(method, values):
    steps = list(range(1, len(values) + 1))
    return small(list(values), method=method, step=steps)


def test_a_hopeless_method_does_not_flatten_the_others(tmp_path):
    falls = np.geomspace(1, 0.1, 20)
    table = pd.concat([falling("l2", falls), falling("ridge", [1e6] * 20), falling("kalman", falls * 0.9)])
    figure = panels.figures(*read(tmp_path, table))[0]
    assert figure.log == pytest.approx((0.9 * 0.09, 1.1 * 3))
    assert figure.linear[0] == 0
    assert 0.5 < figure.linear[1] < 2
    assert [figure.off_scale(line) for line in figure.panels[0].lines] == [False, True, False]
    assert "off scale in 1 of 1" in page.render(tmp_path)


@pytest.mark.parametrize("bad", [math.inf, math.nan, -math.inf])
def test_a_method_that_diverged_says_so(bad, tmp_path):
    falls = np.geomspace(1, 0.1, 20)
    table = pd.concat([falling("l2", falls), falling("ridge", [*(falls[:5] * 1e4), *[bad] * 15])])
    table, experiment = read(tmp_path, table)
    figure = panels.figures(table, experiment)[0]
    ridge = lines(figure)["method=ridge"]
    assert ridge.diverged
    assert [y is None for y in ridge.y] == [False] * 5 + [True] * 15
    assert figure.log == pytest.approx((0.09, 1.1))
    (facet,) = summary.best_settings(table, experiment)
    assert [(entry.shown, entry.ratio) for entry in facet.entries] == [("0.1", 1.0), ("diverged", None)]
    assert "diverged in 1 of 1" in page.render(tmp_path)


def test_one_diverged_seed_is_counted(tmp_path):
    (facet,) = summary.best_settings(*read(tmp_path, small([0.2, math.inf, 0.3], seeds=[0, 1, 2])))
    assert facet.entries[0].shown == "diverged (1 of 3 seeds)"


def test_where_more_is_better_infinity_is_still_the_worst(tmp_path):
    table = small([0.7, math.inf, 0.8], lr=[0.1, 1.0, 0.01])
    table, experiment = read(tmp_path, table, lower=False)
    (facet,) = summary.best_settings(table, experiment)
    assert (facet.best.final, facet.best.settings[0]) == (0.8, "0.01")
    assert summary.sentence([facet], experiment).startswith("Highest test MSE: l2.")


def test_values_that_are_not_positive_have_no_logarithmic_axis(tmp_path):
    figure = panels.figures(*read(tmp_path, falling("l2", [1.0, 0.5, -0.5])))[0]
    assert figure.log is None
    assert figure.linear[0] < -0.5
    assert static(tmp_path, tmp_path)[0].stat().st_size > 1000


def test_sensitivity_shows_the_best_of_the_other_settings(tmp_path):
    table = small([0.5, 0.4, 0.3, 0.2, 1e5], validation=[0.4, 0.5, 0.2, 0.3, 9.0], method="proximal",
                  lam=[0.0, 0.0, 0.1, 0.1, 1.0], lr=[0.1, 0.01] * 2 + [0.1])  # fmt: skip
    figure = panels.figures(*read(tmp_path, table))[1]
    (line,) = figure.panels[0].lines
    assert line.x == pytest.approx((0.01, 0.1, 1.0))  # zero stands a step left of the least positive value
    assert [label for _, label in figure.ticks] == ["0", "0.1", "1"]
    assert line.y == (0.5, 0.3, 1e5)
    assert line.settings[0] == "proximal, lr 0.1"
    assert figure.log[1] < 2
    assert "sgd. test MSE at its best: batch size 32 0.3 at λ 0.1." in page.render(tmp_path)


def test_facets_and_methods_may_be_missing(tmp_path):
    parts = [("sgd", 32, "l2"), ("sgd", 32, "kalman"), ("adam", 256, "kalman"), ("adam", 256, "unheard-of")]
    table = pd.concat([small([0.1 + at], optimizer=o, batch_size=b, method=m) for at, (o, b, m) in enumerate(parts)])
    table, experiment = read(tmp_path, table)
    figure = panels.figures(table, experiment)[0]
    assert [(panel.title, panel.row, panel.column) for panel in figure.panels] == [
        ("adam, batch size 256", 0, 1), ("sgd, batch size 32", 1, 0),
    ]  # fmt: skip
    assert [style.label for style in figure.styles] == ["l2", "Kalman", "unheard-of"]
    facets = summary.best_settings(table, experiment)
    assert [entry.shown_ratio for entry in facets[0].entries] == [MISSING, MISSING]
    assert [entry.ratio for entry in facets[1].entries] == pytest.approx([1, 11])
    assert page.render(tmp_path).count("no runs") == 2
    assert all(path.is_file() for path in static(tmp_path, tmp_path))


def test_a_method_keeps_its_colour_where_others_are_missing(tmp_path):
    methods = ["l2", "ridge", "kalman"]
    among_others = panels.figures(*read(tmp_path / "a", small([0.1] * 3, method=methods)))[0].styles
    alone = panels.figures(*read(tmp_path / "b", small([0.1], method="kalman")))[0].styles
    assert among_others[-1] == alone[0]
    assert len({(style.light, style.dash) for style in among_others}) == 3


@pytest.mark.parametrize(("apart", "said"), [(0.10, "overlaps another."), (0.15, "overlaps no other.")])
def test_intervals_that_overlap_are_told(apart, said, tmp_path):
    """The half width of two values 0.01 apart is 12.706 * 0.005 = 0.0635, so intervals reach 0.127 together."""
    values = [0.39, 0.40, 0.39 + apart, 0.40 + apart]
    table, experiment = read(tmp_path, small(values, method=["l2", "l2", "kalman", "kalman"], seeds=[0, 1, 0, 1]))
    assert summary.sentence(summary.best_settings(table, experiment), experiment).endswith(said)


def test_when_everything_diverged(tmp_path):
    table = small([math.inf, math.nan], method=["l2", "proximal"], lam=[np.nan, 0.1])
    written = write(save(tmp_path, table)).read_text()
    assert "Every model diverged." in written
    assert 'class="best"' not in written
    assert "not in the paper" not in written
    assert all(path.is_file() for path in static(tmp_path, tmp_path))


def test_a_figure_and_a_table_about_nothing(tmp_path):
    nothing = dataclasses.replace(CURVES, where={"optimizer": ["lion"]})
    experiment = dataclasses.replace(EXPERIMENT, figures=(nothing,), where={"optimizer": ["lion"]})
    written = write(save(tmp_path, small([0.1]), experiment)).read_text()
    assert "Nothing was run for this figure." in written
    assert "Nothing was run for this table." in written
    assert static(tmp_path, tmp_path)[0].is_file()


def test_the_sentence(folder):
    table, experiment = panels.read(folder)
    facets = summary.best_settings(table, experiment)
    said = summary.sentence(facets, experiment)
    assert said.startswith("Lowest test MSE: proximal, β follows in all 8 cases. The 95 % ")
    clear = int(re.search(r"The 95 % interval of the best overlaps no other in (\d) of 8 cases", said)[1])
    assert clear == sum(facet.clear for facet in facets)
    split = summary.sentence([facets[0], dataclasses.replace(facets[1], entries=facets[1].entries[:1])], experiment)
    assert "l2 in 1 of 2 cases" not in split  # nobody is best in a facet whose best entry is gone
    assert "In 1 of 2 cases every model diverged." in split


# ---- what is refused


def test_errors_name_the_file_and_the_column(tmp_path):
    with pytest.raises(ValueError, match="experiment.json"):
        write(tmp_path)
    EXPERIMENT.save(tmp_path)
    with pytest.raises(ValueError, match="results.parquet"):
        write(tmp_path)
    results.save(small([0.1]).drop(columns=["lam", "validation"]), tmp_path)
    with pytest.raises(
        ValueError, match=r"results.parquet lacks columns 'lam' and 'validation', .* it has method, opt"
    ):
        write(tmp_path)
    results.save(small(["high"]), tmp_path)
    with pytest.raises(ValueError, match=r"results.parquet: column 'test' holds .*, expected numbers"):
        write(tmp_path)
    results.save(small([0.1])[:0], tmp_path)
    with pytest.raises(ValueError, match=r"results.parquet has no rows"):
        write(tmp_path)
    results.save(small([0.1, 0.2], width=[8, 16]), tmp_path)
    with pytest.raises(ValueError, match=r"results.parquet has 1 second row.* for the same model and step"):
        write(tmp_path)
    save(tmp_path, small([0.1]), dataclasses.replace(EXPERIMENT, methods=(spec.Method("l2", "l2", "}</style>"),)))
    with pytest.raises(ValueError, match="is not a colour"):
        write(tmp_path)
    assert not list(tmp_path.glob("*.html"))


def test_unknown_columns_change_nothing(tmp_path):
    table = small([0.1, 0.2], method=["l2", "kalman"])
    plain = page.render(save(tmp_path, table))
    assert page.render(save(tmp_path, table.assign(unknown=["</script>", "b"], other=1))) == plain


def test_a_missing_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=re.escape("needs jinja2: pip install 'closedform[experiments]'")):
        write(folder)


# ---- what is written


def test_the_page(folder):
    written = write(folder).read_text()
    assert len(written) < 200_000
    assert "ridge" in written
    assert "diverged in 2 of 8" in written
    assert "Numbers drawn from a formula, in the shape of a real sweep.</p>" in written
    assert "<dt>device</dt><dd>NVIDIA H200</dd>" in written
    assert f"<dt>models</dt><dd>{len(sweep(SIZES[:1], ('sgd',))) // 56 * 8:,}</dd>" in written
    for figure in EXPERIMENT.figures:
        assert f"<figcaption>{figure.caption}</figcaption>" in written
    assert written.count('role="img"') == written.count("at the last step: ") + written.count("at its best: ") == 12
    assert written.count('class="best"') == 8
    assert written.count("not in the paper") == 2
    row = re.search(r'<tr class="best">(.*?)</tr>', written, re.S)[1]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row)[2:] == ["0.001", MISSING, "0.1", MISSING, "3"]
    assert not re.search(r"""(src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", written)


def test_only_the_chosen_curves_are_embedded(folder):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.render(folder), re.S)[1])
    curves, *_ = data["figures"]
    assert sum(len(panel["lines"]) for panel in curves["panels"]) == 8 * len(METHODS)
    assert all(len(line["x"]) == len(line["y"]) for panel in curves["panels"] for line in panel["lines"])


def hostile():
    method = spec.Method("l2", HOSTILE)
    figure = dataclasses.replace(CURVES, title=HOSTILE, caption=HOSTILE)
    return dataclasses.replace(
        EXPERIMENT, title=HOSTILE, text=HOSTILE, label=HOSTILE, methods=(method,), figures=(figure,),
        environment={HOSTILE: HOSTILE}, names={"lr": HOSTILE, "step": HOSTILE},
    )  # fmt: skip


def test_nothing_is_injected(tmp_path):
    written = write(save(tmp_path, small([0.1], optimizer=HOSTILE), hostile())).read_text()
    assert "<script>alert" not in written
    assert written.count("</script>") == 2
    assert written.count("&lt;/script&gt;&lt;script&gt;alert(1)") > 8
    data = json.loads(re.search(r'id="data">(.*?)</script>', written, re.S)[1])
    assert data["styles"][0]["label"] == HOSTILE


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    out = write(save(tmp_path, small([0.1])), tmp_path / "deep" / "page.html")
    before = out.read_text()

    def fail(*_):
        raise OSError("disk full")

    save(tmp_path, small([0.7]))
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, out)
    assert out.read_text() == before
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_static_figures_are_small_and_reproducible(folder, tmp_path):
    first, second = static(folder, tmp_path / "a"), static(folder, tmp_path / "b")
    assert [path.name for path in first] == ["1-curves.svg", "2-sensitivity.svg", "3-sensitivity.svg"]
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size < 100_000
    drawn = first[0].read_text()
    for label in ("proximal, β follows", "sgd, batch size 2048", "ridge: diverged", "test MSE"):
        assert f">{label}</text>" in drawn
    assert "<dc:date>" not in drawn


# ---- what a browser shows


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    """A page in the browser, with all that went wrong on it."""

    def __init__(self, browser, path: Path, width=1280):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, color_scheme="light")
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.url = path.as_uri()

    def count(self, selector):
        return self.page.locator(selector).count()

    def style(self, selector, name):
        return self.page.locator(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)

    def overflow(self):
        return self.page.evaluate("document.documentElement.scrollWidth")


@pytest.fixture
def visit(browser, folder):
    opened = []

    def go(path=None, **options):
        opened.append(Visit(browser, path or write(folder), **options))
        return opened[-1]

    yield go
    for each in opened:
        assert each.complaints == []
        assert each.requests == [each.url]
        each.context.close()


def test_the_browser_draws_every_curve(visit):
    seen = visit()
    assert seen.count(".plot") == 8 + 2 + 2
    curves = '.plot[data-figure="0"]'
    assert seen.count(f"{curves} g[data-style]") == 8 * len(METHODS)
    assert seen.count(f"{curves} .band") == 8 * len(METHODS)
    box = seen.page.locator(f"{curves} .line").first.bounding_box()
    assert box["width"] > 150
    assert box["height"] > 100
    assert "NaN" not in seen.page.content()


def test_the_legend_hides_a_method_in_every_panel(visit):
    seen = visit()
    button = seen.page.get_by_role("button", name="Kalman")
    style = button.get_attribute("data-style")
    here = f'.plot[data-figure="0"] g[data-style="{style}"]'
    assert seen.count(here) == 8
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert seen.count(here) == 0
    assert seen.count('.plot[data-figure="0"] g[data-style]') == 8 * (len(METHODS) - 1)
    button.focus()
    seen.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert seen.count(here) == 8


def test_a_figures_own_legend_follows_in_figures_like_it(visit):
    seen = visit()
    buttons = seen.page.get_by_role("button", name="batch size 256")
    assert buttons.count() == 2
    style = buttons.first.get_attribute("data-style")
    buttons.first.click()
    assert buttons.nth(1).get_attribute("aria-pressed") == "false"
    assert seen.count(f'.plot g[data-style="{style}"]') == 0
    assert seen.count('.plot[data-figure="0"] g[data-style]') == 8 * len(METHODS)


def test_pointing_shows_all_methods_values_and_settings(visit, folder):
    seen = visit()
    plot, tip = seen.page.locator(".plot").nth(1), seen.page.locator("#tip")
    assert tip.is_hidden()
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] - 11, "y": 60})
    figure = panels.figures(*panels.read(folder))[0]
    said = tip.inner_text()
    assert f"step {int(figure.panels[1].lines[0].x[-1]):,}" in said
    entries = summary.best_settings(*panels.read(folder))[1].entries
    for entry, line in zip(entries, figure.panels[1].lines):
        assert entry.method.label in said
        assert entry.shown in said
        assert line.settings[0] in said
    seen.page.mouse.move(5, 5)
    assert tip.is_hidden()
    plot.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "step 1\n" in tip.inner_text()
    seen.page.keyboard.press("ArrowRight")
    assert f"step {int(figure.panels[1].lines[0].x[1]):,}" in tip.inner_text()
    seen.page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_pointing_names_the_value_that_was_tried(visit, tmp_path):
    table = small([0.5, 0.4, 0.3], method="proximal", lam=[0.0, 0.0123456789, 0.3])
    seen = visit(write(save(tmp_path, table)))
    seen.page.locator('.plot[data-figure="1"]').focus()
    for label in ("λ 0\n", "λ 0.01235\n", "λ 0.3\n"):
        seen.page.keyboard.press("ArrowRight")
        assert label in seen.page.locator("#tip").inner_text()


def test_a_diverged_method_says_so_under_the_pointer(visit):
    seen = visit()
    plot = seen.page.locator(".plot").first
    assert plot.locator("text.note").text_content() == "ridge: diverged"
    plot.hover(position={"x": 250, "y": 60})
    assert re.search(r"ridge\s+diverged", seen.page.locator("#tip").inner_text())


@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_switches_change_the_axes(visit, axis):
    seen = visit()
    button = seen.page.get_by_role("button", name=f"log {axis}")
    plot = seen.page.locator(".plot").first

    def look():
        ticks = [float(text.replace("k", "e3")) for text in plot.locator(f".tick-{axis}").all_text_contents()]
        return sorted(ticks), plot.locator(".line").first.get_attribute("d")

    before, path = look()
    was = button.get_attribute("aria-pressed")
    button.click()
    assert button.get_attribute("aria-pressed") != was
    after, other = look()
    linear, log = (before, after) if axis == "x" else (after, before)
    assert len(set(np.round(np.diff(linear), 9))) == 1
    assert log[0] > 0
    assert log[-1] / log[0] > (40 if axis == "x" else 4)
    assert len(set(np.round(np.diff(log), 9))) > 1
    assert path != other


def test_the_page_follows_the_colour_scheme_as_it_changes(visit):
    seen = visit()
    line = '.plot[data-figure="0"] .line'
    light = seen.style("body", "backgroundColor"), seen.style(line, "stroke")
    seen.page.emulate_media(color_scheme="dark")
    for _ in range(50):  # the browser tells the page in its own time
        if seen.style(line, "stroke") != light[1]:
            break
        seen.page.wait_for_timeout(100)
    dark = seen.style("body", "backgroundColor"), seen.style(line, "stroke")
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(20, 23, 27)"
    assert light[1] != dark[1]
    seen.page.emulate_media(media="print")
    seen.page.wait_for_timeout(300)
    assert (seen.style("body", "backgroundColor"), seen.style(line, "stroke")) == light


def test_a_phone_stacks_the_panels_and_does_not_scroll_sideways(visit):
    seen = visit(width=390)
    assert seen.overflow() <= 390
    lefts = {plot.bounding_box()["x"] for plot in seen.page.locator(".plot").all()}
    assert len(lefts) == 1
    seen.page.locator(".plot").nth(2).hover(position={"x": 300, "y": 60})
    assert seen.page.locator("#tip").bounding_box()["width"] <= 390
    assert seen.overflow() <= 390
    table = seen.page.locator(".scroll")
    assert table.evaluate("node => node.scrollWidth > node.clientWidth")
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    assert len({plot.bounding_box()["x"] for plot in seen.page.locator('.plot[data-figure="0"]').all()}) == 4


def test_a_browser_survives_the_odd_ones(visit, tmp_path):
    long = hostile()
    seen = visit(write(save(tmp_path / "hostile", small([0.1], optimizer=HOSTILE), long)), width=390)
    assert seen.page.locator("h1").inner_text() == HOSTILE
    dot, plot = (seen.page.locator(selector).bounding_box() for selector in (".plot .dot", ".plot"))
    assert plot["x"] + 100 < dot["x"] < plot["x"] + plot["width"] - 100
    assert seen.overflow() <= 390
    gone = visit(
        write(save(tmp_path / "gone", small([math.inf, math.nan], method=["l2", "proximal"], lam=[np.nan, 0.1])))
    )
    assert gone.page.locator(".plot").first.locator("text.note").text_content() == "l2, proximal: diverged"
    negative = visit(write(save(tmp_path / "negative", falling("l2", [1.0, 0.5, -0.5]))))
    assert "-" in "".join(negative.page.locator(".tick-y").all_text_contents())
