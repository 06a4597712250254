"""The verdicts on the claims stand on the page of a sweep."""

import dataclasses
import re
from html import unescape
from pathlib import Path

import pytest

from closedform.paper import claims
from closedform.paper.claims.section import section
from closedform.paper.running import write_report

from .report_tables import EXPERIMENT, save, small

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", claims.EXPERIMENTS)
def test_every_verdict_of_the_command_stands_on_the_page(name):
    checks = claims.check(name, ROOT / "results" / name)
    rows = re.findall(
        r'<td class="(?:holds|fails)">([^<]*)</td><td>(.*?)</td><td>(.*?)</td>', section(ROOT / "results" / name)
    )
    expected = [("holds" if one.holds else "does not hold", one.claim, one.figures)
                for beyond in (False, True) for one in checks if one.beyond is beyond]  # fmt: skip
    assert [tuple(unescape(cell) for cell in row) for row in rows] == expected


def test_results_that_cannot_answer_say_why(tmp_path):
    save(tmp_path, small([0.1], study="methods"), dataclasses.replace(EXPERIMENT, name="qm9"))
    page = write_report(tmp_path).read_text()
    assert "The claims are not checked on this page" in page
    assert "nothing for study methods" in page


def test_other_experiments_have_no_claims(tmp_path):
    save(tmp_path, small([0.1]))
    assert "claims" not in write_report(tmp_path).read_text()
