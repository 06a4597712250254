"""Parameters of estimators: what may be given for one, and how it is written to a file and read from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from .solver import rules

PLAIN = (str, int, float, bool, type(None))
RULES = {kind.__name__: kind for kind in (rules.Ridge, rules.Proximal, rules.Ema, rules.Kalman)}


def is_positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def are_sizes(sizes: Any) -> bool:
    return isinstance(sizes, (tuple, list)) and len(sizes) > 0 and all(map(is_count, sizes))


def check_auto(name: str, value: Any, good: Callable[[Any], bool], expected: str) -> None:
    """Raise a ValueError unless the value is "auto" or a good one."""
    if isinstance(value, str) and value == "auto":
        return
    if isinstance(value, (str, bool)) or not good(value):
        raise ValueError(f'{name} must be "auto" or {expected}, got {value!r}')


# ---- In files ------------------------------------------------------------------------------------


def to_json(name: str, value: Any) -> Any:
    """A parameter as JSON has it. A backbone is code, of which a file has only the name; a random generator has left its
    draws in the weights, and a file has none."""
    if name == "backbone":
        return None if value is None else type(value).__name__
    if name == "random_state" and not isinstance(value, (int, np.integer, type(None))):
        return None
    if isinstance(value, rules.Rule):
        settings = dict(vars(value)) if type(value).__name__ in RULES else {}
        if not settings or any(not isinstance(v, PLAIN) for v in settings.values()):
            raise ValueError(f"the rule {value} cannot be saved: only {', '.join(RULES)} with plain numbers can")
        return {"rule": type(value).__name__, **settings}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [to_json(name, v) for v in value]
    if not isinstance(value, PLAIN):
        raise ValueError(f"the parameter {name}={value!r} cannot be saved")
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if isinstance(value, dict):
        if value.get("rule") not in list(RULES) or any(not isinstance(v, PLAIN) for v in value.values()):
            raise ValueError(f"the rule is {value!r:.80}; expected one of {', '.join(RULES)} with plain numbers")
        kind = RULES[value["rule"]]
        return kind(**{field.name: value[field.name] for field in fields(kind)})
    return value
