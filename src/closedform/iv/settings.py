"""Which values the parameters of `DFIVRegressor` take."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..parameters import are_sizes, check_auto, is_count, is_positive


def check(estimator: Any) -> None:
    """Raise a ValueError that names the first parameter of a `DFIVRegressor` with a value that it does not take."""
    choices = {"features": ("deep", "linear"), "treatment": ("auto", "linear", "sieve", "deep")}
    choices["rule"] = ("proximal", "kalman", "ridge")
    for name, allowed in choices.items():
        if getattr(estimator, name) not in allowed:
            listed = ", ".join(f'"{value}"' for value in allowed)
            raise ValueError(f"{name} must be one of {listed}, got {getattr(estimator, name)!r}")
    check_auto("hidden_layer_sizes", estimator.hidden_layer_sizes, are_sizes, "a sequence of positive integers")
    three = lambda sizes: are_sizes(sizes) and len(sizes) == 3  # noqa: E731
    check_auto("n_features", estimator.n_features, three, "three positive integers")
    check_auto("lam_inner", estimator.lam_inner, is_positive, "a positive number")
    check_auto("learning_rate", estimator.learning_rate, is_positive, "a positive number")
    if estimator.rule == "ridge" and estimator.lam_inner != "auto":
        raise ValueError(
            f'lam_inner is {estimator.lam_inner!r}, and rule="ridge" has no lambda inside: expected "auto"'
        )
    check_auto("max_iter", estimator.max_iter, is_count, "a positive integer")
    for name in ("batch_size", "members"):
        if not is_count(getattr(estimator, name)):
            raise ValueError(f"{name} must be a positive integer, got {getattr(estimator, name)!r}")
    if estimator.members > 1 and estimator.members % 2:
        raise ValueError(
            f"members must be 1 or even, since they come in pairs with exchanged halves, got {estimator.members}"
        )
    if not (estimator.weight_decay == 0 or is_positive(estimator.weight_decay)):
        raise ValueError(f"weight_decay must be a number from 0 on, got {estimator.weight_decay!r}")
    if not is_positive(estimator.validation_fraction) or not estimator.validation_fraction < 0.9:
        raise ValueError(f"validation_fraction must be between 0 and 0.9, got {estimator.validation_fraction!r}")
    if estimator.backbone is not None and not isinstance(estimator.backbone, nn.Module):
        raise ValueError(f"backbone must be a torch.nn.Module or None, got {type(estimator.backbone).__name__}")
