"""The report on a trained model in a browser: on a phone and on a screen, with many classes and with hostile names."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from closedform.tabular import training

from .browsing import visits
from .table_cases import everyday, homes

HOSTILE = "</title><script>alert(1)</script>" + "w" * 60


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of a regression, of eleven classes with long names, and of hostile names in a table of few rows."""
    here = tmp_path_factory.mktemp("reports")
    table = everyday(300)
    area = table["area"].str.removesuffix(" m²").astype(float)
    classes = np.array([f"a rather long name of class {k}" for k in range(12)])
    tables = {
        "numbers": table.assign(y=3 * area),
        "classes": table.assign(y=classes[(area / 17).astype(int)]),
        "hostile": homes(40).rename(columns={"price": "y", "area": HOSTILE, "district": HOSTILE + "!"}),
    }
    for name, data in tables.items():
        data.to_csv(here / f"{name}.csv", index=False)
        training.train(here / f"{name}.csv", "y", here / name, max_iter=2)
    return {name: here / name / "report.html" for name in tables}


@pytest.fixture
def visit(browser, reports):
    with visits(browser) as go:
        yield lambda name, width: go(reports[name], width=width)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["numbers", "classes", "hostile"])
def test_the_page_is_no_wider_than_the_screen(name, width, visit):
    seen = visit(name, width)
    assert seen.overflow() <= width
    assert seen.count("svg") == (2 if name == "classes" else 4)


def test_many_classes_scroll_in_their_own_box(visit):
    seen = visit("classes", 390)
    box = seen.page.locator(".wide:has(.matrix)")
    assert box.evaluate("node => node.scrollWidth > 2 * node.clientWidth")
    assert box.bounding_box()["width"] <= 390
    assert seen.count(".matrix tr") == 12


@pytest.mark.parametrize("width", [390, 700, 1280])
def test_a_line_of_the_legend_stays_beside_its_words(width, visit):
    seen = visit("numbers", width)
    keys = seen.page.locator(".key")
    assert keys.count() == 2
    for k in range(2):
        line, words = (keys.nth(k).locator("span").nth(part).bounding_box() for part in (0, 1))
        assert line["x"] + line["width"] <= words["x"] < line["x"] + line["width"] + 20
        assert words["y"] <= line["y"] <= words["y"] + 24  # of the first row of words


def test_what_stands_on_the_page(visit):
    seen = visit("numbers", 1280)
    rows = seen.page.locator(".columns tr")
    assert rows.count() == 1 + len(everyday().columns)
    assert rows.nth(1).inner_text().split("\t") == ["area", "number, in m²"]
    assert "R²" in seen.page.locator("table").first.inner_text()
    assert "mean of the training rows" in seen.page.locator("table").first.inner_text()
    assert "Column 'empty' is left out: all its values are missing." in seen.page.locator(".columns ul").inner_text()
    few = visit("hostile", 1280)
    assert "only 8 rows" in few.page.locator("header").inner_text()
