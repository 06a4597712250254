"""Numbers as people write them: "94.7 m²", "$1,200", "45 %", "1.234,50". One spelling holds for a whole column."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

CURRENCY = "$€£¥₹"
MINUS, PRIMES = "\u2212", "\u2032\u2033"  # as typesetters write them
GROUPS = " '\u2019\u00a0\u202f"  # between thousands, besides a comma or a point
LONGEST = 60  # characters of a quantity
FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "mn": 1e6, "bn": 1e9, "B": 1e9}
_REST = (
    r"(?:[^\d\s,;]|(?<=[a-zA-Z^])[23])"  # of a unit, after its first letter: m2 and sq ft are some, but no sentence is
)
QUANTITY = re.compile(
    rf"(?P<sign>[-+{MINUS}]?)\s*(?P<before>[{CURRENCY}]|[A-Z]{{3}}\b)?\s*(?P<inner>[-+{MINUS}]?)"
    rf"(?P<digits>[.,]?\d[\d.,{GROUPS}]*?)(?P<power>[eE][-+]?\d+)?\s*"
    rf"(?P<after>(?:[^\W\d_]|[°%‰{CURRENCY}{PRIMES}]){_REST}{{0,11}}(?: {_REST}{{1,8}})?)?"
)
_OTHERS = {".": "," + GROUPS, ",": "." + GROUPS}  # what may stand between thousands
DIGITS = {
    mark: re.compile(rf"(?:\d+|\d{{1,3}}(?:[{re.escape(others)}]\d{{3}})+)?(?:{re.escape(mark)}\d*)?")
    for mark, others in _OTHERS.items()
}
WITHOUT = {mark: str.maketrans(mark, ".", others) for mark, others in _OTHERS.items()}


@dataclass(frozen=True)
class Spelling:
    """How the numbers of a column are written: with which unit (or none), and with a decimal point or comma."""

    unit: str = ""
    decimal: str = "."


def spelling(texts: Sequence[str]) -> Spelling | None:
    """The one spelling in which these different texts, nearly all of them quantities, are numbers. None where they have
    different units, or some a decimal point and others a decimal comma.

    >>> spelling(["94.7 m²", "80 m²"]), spelling(["$1,200", "$950"]), spelling(["1.234,5", "0,25"])
    (Spelling(unit='m²', decimal='.'), Spelling(unit='$', decimal='.'), Spelling(unit='', decimal=','))
    >>> spelling(["5 km", "300 m"]) is None
    True
    """
    units: dict[str, str] = {}
    votes = set()
    for text in texts:
        match = _match(text)
        if match is None:
            continue
        unit, _ = _unit(match)
        if unit:
            units.setdefault(_normal(unit), unit)
        votes |= _decimal(match["digits"].strip(GROUPS))
    if len(units) > 1 or len(votes) > 1:
        return None
    return Spelling(next(iter(units.values()), ""), votes.pop() if votes else ".")


def units(texts: Sequence[str]) -> list[str]:
    """The different units of these texts, without those of no unit.

    >>> units(["5 km", "300 m", "7 km", "x"])
    ['km', 'm']
    """
    matches = map(_match, texts)
    return sorted({unit for match in matches if match is not None and (unit := _unit(match)[0])})


def is_quantity(text: str) -> bool:
    """Whether a text is a number with or without a unit, in any spelling.

    >>> [is_quantity(t) for t in ("94.7 m²", "$1,200", "-3", "1e-5", "2 bedrooms", "A12", "10-19", "1.2.3", "north")]
    [True, True, True, True, True, False, False, False, False]
    """
    match = _match(text)
    if match is None:
        return False
    digits = match["digits"].strip(GROUPS)
    return any(_value(digits, decimal) is not None for decimal in ".,")


def number(text: str, spelling: Spelling) -> float:
    """The number that a text is in this spelling, NaN where it is none; the unit may be left away.

    >>> number("$1.2M", Spelling("$")), number("45 %", Spelling("%")), number("5 km", Spelling("m"))
    (1200000.0, 45.0, nan)
    >>> number("-$3", Spelling("$")), number("(1,200)", Spelling()), number("(1,200", Spelling())
    (-3.0, -1200.0, nan)
    """
    match = _match(text)
    if match is None:
        return math.nan
    unit, factor = _unit(match)
    value = _value(match["digits"].strip(GROUPS), spelling.decimal)
    if value is None or (unit and _normal(unit) != _normal(spelling.unit)):
        return math.nan
    negative = (match["sign"] or match["inner"]) in ("-", MINUS) or text.startswith("(")
    return (-1.0 if negative else 1.0) * float(f"{value}{match['power'] or ''}") * factor


def _match(text: str) -> re.Match[str] | None:
    """The parts of a quantity; one in brackets is negative, as bookkeepers write it."""
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    if len(text) > LONGEST:  # the expression below would take long for a long text of blanks
        return None
    return QUANTITY.fullmatch(text)


def _unit(match: re.Match[str]) -> tuple[str, float]:
    """The unit, before or after the number, and the factor of a thousand, million or billion that is written as a letter."""
    before, after = match["before"] or "", (match["after"] or "").strip()
    if after in FACTORS:
        return before, FACTORS[after]
    return (f"{before} {after}" if before and after else before or after), 1.0


def _normal(unit: str) -> str:
    """One bedroom and two bedrooms have one unit, and m² is m2."""
    plain = unit.casefold().replace("²", "2").replace("³", "3").replace("^", "").rstrip(".")
    return plain[:-1] if len(plain) > 3 and plain.endswith("s") else plain


def _decimal(digits: str) -> set[str]:
    """Which decimal mark a number proves: the later of two marks, or the other one where a mark stands twice; one with
    other than three digits behind it, or more than three or a zero before it. None for 1,200, which may be either.

    >>> _decimal("1,200"), _decimal("1,200.5"), _decimal("0,250"), _decimal("1.200.300")
    (set(), {'.'}, {','}, {','})
    """
    marks = [c for c in digits if c in ".,"]
    if not marks:
        return set()
    if len(set(marks)) == 2:
        return {marks[-1]}
    other = "," if marks[0] == "." else "."
    if len(marks) > 1:
        return {other}
    head, _, tail = digits.partition(marks[0])
    head = "".join(c for c in head if c.isdigit())
    return {marks[0]} if len(tail) != 3 or len(head) > 3 or head in ("", "0") else set()


def _value(digits: str, decimal: str) -> str | None:
    """The digits as Python writes them, or None where they are no number with this decimal mark."""
    if not DIGITS[decimal].fullmatch(digits):
        return None
    plain = digits.translate(WITHOUT[decimal])
    return plain if plain not in ("", ".") else None
