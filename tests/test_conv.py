"""The 1x1 convolution whose weights are solved is the linear layer on the points."""

import copy

import pytest
import torch
from torch import nn

import closedform as cf
from closedform.solver import route

from . import cases
from .helpers import relative


def fields(dims, batch=3, channels=5, outputs=2, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    space = (7,) if dims == 1 else (4, 3)
    phi = torch.randn(batch, channels, *space, generator=g, dtype=dtype)
    return phi, torch.randn(batch, outputs, *space, generator=g, dtype=dtype)


def pair(dims, rule=None, bias=True, **options):
    kind = {"rule": rule, "dtype": torch.float64, **options}
    return cf.ClosedFormConv1x1(5, 2, bias, dims=dims, **kind), cf.ClosedFormLinear(5, 2, bias, **kind)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@cases.rules("ridge", "proximal", "auto", "ema", "kalman", features=5)
def test_it_is_the_linear_layer_on_the_points(rule, bias, dims):
    conv, linear = pair(dims, rule, bias)
    for seed in range(4):
        phi, y = fields(dims, seed=seed)
        weight = torch.rand(phi[:, 0].shape, dtype=torch.float64) if seed == 2 else None
        conv.solve(phi, y, weight)
        linear.solve(phi.movedim(1, -1), y.movedim(1, -1), weight)
        assert relative(conv.weight, linear.weight) < 1e-12
    assert relative(conv(phi), linear(phi.movedim(1, -1)).movedim(-1, 1)) < 1e-12
    assert conv(phi).shape == y.shape
    if isinstance(rule, cf.Kalman):
        assert relative(conv.variance(phi), linear.variance(phi.movedim(1, -1)).movedim(-1, 1)) < 1e-12


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_its_weights_load_into_a_convolution_and_back(dims, bias):
    conv, _ = pair(dims, bias=bias)
    phi, y = fields(dims)
    conv.solve(phi, y)
    plain = (nn.Conv1d, nn.Conv2d)[dims - 1](5, 2, kernel_size=1, bias=bias).double()
    missing, unexpected = plain.load_state_dict(conv.state_dict(), strict=False)
    assert not missing
    assert "weight" not in unexpected
    assert relative(plain(phi), conv(phi)) < 1e-12
    assert relative(conv.to_conv()(phi), conv(phi)) < 1e-12
    other, _ = pair(dims, bias=bias, init="lecun")
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other.weight, conv.weight)
    again, _ = pair(dims, bias=bias)
    again.load_state_dict(conv.state_dict())
    again.solve(phi, y + 1)
    conv.solve(phi, y + 1)
    assert torch.equal(again.weight, conv.weight)
    assert torch.equal(copy.deepcopy(conv)(phi), conv(phi))


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("cast", [False, True])
def test_its_output_lies_in_memory_as_a_convolution_s(dims, cast):
    conv = cf.ClosedFormConv1x1(5, 2, dims=dims, init="lecun")
    conv.observe(None)  # not a run: nobody means to solve it
    phi = fields(dims, dtype=torch.float32)[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        own, plain = conv(phi), conv.to_conv()(phi)
        assert (own.stride(), own.dtype) == (plain.stride(), plain.dtype)
        if dims == 2:
            last = phi.detach().contiguous(memory_format=torch.channels_last)
            assert conv(last).stride() == conv.to_conv()(last).stride()
    conv.weight.add_(1.0)  # as a solve between forward and backward would
    with pytest.raises(RuntimeError, match="solved between a forward and its backward"):
        own.sum().backward()


def test_observe_accumulate_and_refit_take_fields():
    phi, y = fields(2)
    solved, watched, gathered, fitted = (pair(2, cf.Ridge(0.1))[0] for _ in range(4))
    solved.solve(phi, y)
    watched.observe(y)
    model = nn.Sequential(nn.Identity(), watched)
    assert relative(model(phi), solved(phi)) < 1e-12
    assert int(watched.step) == 1
    for part in range(3):
        gathered.accumulate(phi[part : part + 1], y[part : part + 1])
    gathered.commit()
    cf.refit_(fitted, nn.Identity(), [(phi[:2], y[:2]), (phi[2:], y[2:])], beta=0.1)
    buried = nn.Sequential(nn.Identity(), pair(2, cf.Ridge(0.1))[0])
    cf.refit_(buried[1], buried, [(phi, y)], beta=0.1)
    for head in (watched, gathered, fitted, buried[1]):
        assert relative(head.weight, solved.weight) < 1e-10


def test_labels_of_every_point():
    phi, _ = fields(2)
    labels = torch.randint(0, 2, phi[:, 0].shape, generator=torch.Generator().manual_seed(1))
    conv, linear = pair(2, loss=cf.CrossEntropy())
    conv.solve(phi, labels)
    linear.solve(phi.movedim(1, -1), labels)
    assert conv.weight.abs().sum() > 0
    assert relative(conv.weight, linear.weight) < 1e-12


@pytest.mark.parametrize(
    ("dims", "phi", "y", "message"),
    [
        (2, (3, 5, 4, 3), (3, 4, 3, 2), r"y must have shape \(3, 2, 4, 3\) to go with phi \(3, 5, 4, 3\)"),
        (2, (3, 4, 3, 5), (3, 2, 3, 5), "5 channels in its second dimension"),
        (2, (3, 5, 4), (3, 2, 4), r"phi must be \(B, C, H, W\) for dims=2, got shape \(3, 5, 4\)"),
        (1, (3, 5, 4, 3), (3, 2, 4, 3), r"phi must be \(B, C, N\) for dims=1"),
        (2, (5, 4, 3), (2, 4, 3), r"phi must be \(B, C, H, W\) for dims=2.*; a single field needs phi\[None\]"),
        (2, (3, 4, 3, 5), (3, 4, 3, 2), "5 channels in its second dimension, .*; are its channels last"),
        (1, (0, 5, 4), (0, 2, 4), "no samples"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(dims, phi, y, message):
    conv, _ = pair(dims, cf.Kalman(0.9))
    conv.solve(*fields(dims))
    before = copy.deepcopy(conv.state_dict())
    with pytest.raises(ValueError, match=message):
        conv.solve(torch.randn(phi, dtype=torch.float64), torch.randn(y, dtype=torch.float64))
    assert all(torch.equal(value, before[key]) for key, value in conv.state_dict().items())
    for bad in (3, 2.0, True):
        with pytest.raises(ValueError, match="dims must be 1"):
            cf.ClosedFormConv1x1(5, 2, dims=bad)
    for call in (conv, conv.variance):
        with pytest.raises(ValueError, match="5 channels in its second dimension"):
            call(torch.zeros(2, 6, *[4] * dims, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"phi must be \(B, C, "):
        conv(torch.zeros(2, 5, dtype=torch.float64))


@cases.rules("ridge", "proximal", "kalman", features=5)
@pytest.mark.parametrize("points", [5, 50, 333])
def test_a_head_shared_over_space_may_add_up_in_any_pieces(points, rule, monkeypatch):
    phi, y = (torch.randn(4, points, size, dtype=torch.float64) for size in (6, 2))
    solutions = []
    for chunk in (1, 7, 4 * points - 1, 10**6):
        monkeypatch.setattr(route, "CHUNK", chunk)
        head = cf.ClosedFormLinear(6, 2, rule=rule, dtype=torch.float64)
        head.solve(phi, y)
        head.solve(phi.flip(0), y)
        solutions.append(head.weight.clone())
    for weights in solutions[:-1]:
        assert relative(weights, solutions[-1]) < 1e-10


def test_a_weight_a_field_is_that_weight_at_all_its_points():
    phi, y = torch.randn(3, 4, 5, 6).double(), torch.randn(3, 2, 5, 6).double()
    weight = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    a, b = (cf.ClosedFormConv1x1(4, 2, rule=cf.Ridge(0.1), dtype=torch.float64) for _ in range(2))
    a.solve(phi, y, weight)
    b.solve(phi, y, weight[:, None, None].expand(3, 5, 6))
    assert relative(a.weight, b.weight) < 1e-14
    b.solve(phi, y)
    assert relative(a.weight, b.weight) > 1e-3
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(3, 5, 6\), got \(2,\)"):
        a.solve(phi, y, weight[:2])


def test_fields_go_with_features_whose_points_are_in_a_row():
    """As in a model that flattens its fields before the last layer, and whose user sees only the fields."""
    phi, y = torch.randn(3, 4, 5, 6).double(), torch.randn(3, 2, 5, 6).double()
    weight = torch.rand(3, 5, 6, dtype=torch.float64)
    row = cf.ClosedFormConv1x1(4, 2, dims=1, rule=cf.Ridge(0.1), dtype=torch.float64)
    field = cf.ClosedFormConv1x1(4, 2, rule=cf.Ridge(0.1), dtype=torch.float64)
    row.observe(y, weight)
    row(phi.flatten(2))
    field.solve(phi, y, weight)
    assert relative(row.weight, field.weight) < 1e-14
    with pytest.raises(ValueError, match=r"y must have shape \(3, 2, 30\)"):
        row.solve(phi.flatten(2), y[:, :, :4])
