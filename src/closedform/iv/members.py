"""One pair of networks and layers of `DFIVRegressor`: how it is built, and what it says. `choice` trains and chooses."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from . import Layers, evaluation, networks
from .evaluation import Scale

SIEVES = {"sieve": networks.NARROW, "wide sieve": networks.WIDE}
HOLD_OUT = 0.15


@dataclass(frozen=True)
class Design:
    """Everything about a member but its weights; plain numbers and texts."""

    inputs: int  # columns of the treatment, the instruments (controls among them) and the controls
    instruments: int
    controls: int
    treatment: str  # "linear", "sieve", "wide sieve", "deep" or "backbone"
    hidden: tuple[int, ...]
    widths: tuple[int, int, int]  # features of psi, phi and xi beside their inputs
    rule: str
    inner: float
    iterations: int
    batch: int
    learning_rate: float
    weight_decay: float
    seed: int

    @property
    def free(self) -> int:
        """Features of the treatment, from the first on, that no ridge is put on."""
        return 0 if self.treatment == "backbone" else self.inputs

    @property
    def fixed(self) -> bool:
        """Whether no outcome has had a part in the features of stage two."""
        return (self.treatment == "linear" or self.sieve) and not self.controls

    @property
    def sieve(self) -> bool:
        return self.treatment in SIEVES

    @property
    def bumps(self) -> networks.Bumps | None:
        """Of a sieve: with controls there would be too many products, and few rows to choose by."""
        return None if self.controls else SIEVES.get(self.treatment)

    @property
    def unpenalised(self) -> tuple[int, int, int]:
        """Of psi, phi and xi: strong ridges leave the linear model, and not zero."""
        return self.free, self.instruments, self.controls


@dataclass
class Member:
    """Trained networks, the layers that predict, and those of training."""

    design: Design
    psi: nn.Module
    phi: nn.Module
    xi: nn.Module | None
    layers: Layers
    online: Layers
    ridge: float  # a row; 0 for the layers of training
    losses: Tensor  # of the outcome given instruments, on held-out rows
    first: float  # ridge of stage one, a row
    again: Layers | None = None  # the best re-estimated layers, also where those of training predict; not saved

    def structural(self, x: Tensor, controls: Tensor | None, layers: Layers | None = None) -> Tensor:
        """The structural function, differentiable in x."""
        xi = None if self.xi is None or controls is None else self.xi(controls).double()
        return (layers or self.layers).structural(self.psi(x).double(), xi)[:, 0]

    def curve(self, x: Tensor, controls: Tensor | None, layers: Layers | None = None) -> Tensor:
        """The structural function at each row of x, averaged over the controls (it is linear in xi), less its mean."""
        xi = None
        if self.xi is not None and controls is not None:
            xi = evaluation.outputs(self.xi, controls).mean(0).expand(len(x), -1)
        values = (layers or self.layers).structural(evaluation.outputs(self.psi, x), xi)[:, 0]
        return values - values.mean()

    def averaged(self, x: Tensor, controls: Tensor) -> Tensor:
        """The structural function at each row of the controls, averaged over x: it is linear in psi."""
        assert self.xi is not None
        psi = evaluation.outputs(self.psi, x).mean(0)
        return self.layers.structural(psi.expand(len(controls), -1), evaluation.outputs(self.xi, controls))[:, 0]

    def expected(self, z: Tensor, controls: Tensor | None) -> Tensor:
        """The outcome given instruments."""
        xi = None if self.xi is None or controls is None else self.xi(controls).double()
        return self.layers.expected(self.phi(z).double(), xi)[:, 0]

    # ---- Files -----------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is learned, by name."""
        tensors = {"losses": self.losses}
        for name, net in (("psi", self.psi), ("phi", self.phi), ("xi", self.xi)):
            if net is not None:
                tensors |= {f"{name}.{key}": value for key, value in net.state_dict().items()}
        for name, layers in (("layers", self.layers), ("online", self.online)):
            for field in fields(Layers):
                value = getattr(layers, field.name)
                if isinstance(value, Scale):
                    tensors |= {f"{name}.{field.name}.mean": value.mean, f"{name}.{field.name}.scale": value.scale}
                elif value is not None:
                    tensors[f"{name}.{field.name}"] = value
        return tensors

    @staticmethod
    def rebuilt(
        design: Design, tensors: dict[str, Tensor], ridge: float, first: float, backbone: nn.Module | None
    ) -> Member:
        """The inverse of `tensors`."""
        psi, phi, xi, _ = build(design, backbone)
        for name, net in (("psi", psi), ("phi", phi), ("xi", xi)):
            if net is not None:
                own = {k[len(name) + 1 :]: v for k, v in tensors.items() if k.startswith(f"{name}.")}
                net.load_state_dict(own)
                net.eval().requires_grad_(False)

        def layers(name: str) -> Layers:
            values: dict[str, Any] = {}
            for field in fields(Layers):
                key = f"{name}.{field.name}"
                if f"{key}.mean" in tensors:
                    values[field.name] = Scale(tensors[f"{key}.mean"], tensors[f"{key}.scale"])
                else:
                    values[field.name] = tensors.get(key)
            return Layers(**values)

        return Member(design, psi, phi, xi, layers("layers"), layers("online"), ridge, tensors["losses"], first)


def build(design: Design, backbone: nn.Module | None) -> tuple[nn.Module, nn.Module, nn.Module | None, list[int]]:
    """The networks of a design with fresh weights, and the numbers of their features."""
    g = torch.Generator().manual_seed(design.seed)
    d, k, q = design.widths
    if design.treatment == "backbone":
        assert backbone is not None
        psi = copy.deepcopy(backbone)
        with torch.no_grad():
            shape = psi(torch.zeros(2, design.inputs)).shape
        if len(shape) != 2:
            raise ValueError(f"backbone must give features (rows, features), got shape {tuple(shape)} for 2 rows")
        treated = psi, int(shape[1])
    elif design.treatment == "linear":
        treated = nn.Identity(), design.inputs
    elif design.sieve:
        treated = networks.Sieve(design.bumps), networks.sieve_width(design.inputs, design.bumps)
    else:
        treated = networks.beside([design.inputs, *design.hidden, d], g)
    instruments = networks.beside([design.instruments, *design.hidden, k], g)
    if design.sieve:
        instruments = networks.sieve_beside([design.instruments, *design.hidden, k], g, design.bumps)
    pairs = [treated, instruments]
    if design.controls:
        pairs.append(networks.beside([design.controls, *design.hidden, q], g))
    nets = [net for net, _ in pairs]
    return nets[0], nets[1], nets[2] if design.controls else None, [width for _, width in pairs]
