"""The report: what it chooses, what it shows, what it refuses."""

import dataclasses
import json
import math
import re
import sys

import numpy as np
import pandas as pd
import pytest

from closedform.paper.report import page, panels, spec, static, summary, write
from closedform.paper.sweeps import results

from .report_tables import (
    CURVES,
    EXPERIMENT,
    HOSTILE,
    METHODS,
    MISSING,
    SIZES,
    falling,
    hostile,
    lines,
    read,
    save,
    small,
    sweep,
)


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


def test_a_hopeless_method_does_not_flatten_the_others(tmp_path):
    falls = np.geomspace(1, 0.1, 20)
    table = pd.concat([falling("l2", falls), falling("ridge", [1e6] * 20), falling("kalman", falls * 0.9)])
    figure = panels.figures(*read(tmp_path, table))[0]
    assert figure.log == pytest.approx((0.9 * 0.09, 1.1))
    assert figure.linear[0] == 0
    assert 0.5 < figure.linear[1] < 2
    assert [figure.off_scale(line) for line in figure.panels[0].lines] == [False, True, False]


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
    assert line.settings[0] == "lr 0.1"
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
    assert said.startswith("Lowest test MSE: proximal, β follows in all 8 cases. The best one's 95 % ")
    clear = int(re.search(r"The best one's 95 % interval is clear of all others in (\d) of 8 cases", said)[1])
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
    described = [written.count(words) for words in ("at the best setting: ", "at the last step: ", "at its best: ")]
    assert described == [2, 8, 4]
    assert written.count('role="img"') == sum(described)
    assert written.count('class="best"') == 8
    assert written.count("not in the paper") == 2
    row = re.search(r'<tr class="best">(.*?)</tr>', written, re.S)[1]
    assert re.findall(r"<td[^>]*>(.*?)</td>", row)[2:] == ["0.001", MISSING, "0.1", MISSING, "3"]
    assert not re.search(r"""(src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", written)


def test_only_the_chosen_curves_are_embedded(folder):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.render(folder), re.S)[1])
    headline, curves, *_ = data["figures"]
    assert headline["kind"] == "headline"
    assert sum(len(panel["lines"]) for panel in curves["panels"]) == 8 * len(METHODS)
    assert all(len(line["x"]) == len(line["y"]) for panel in curves["panels"] for line in panel["lines"])


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
