"""Mixed precision: the solve in float64, the output in the caller's dtype, gradients checked."""

import pytest
import torch
from torch.nn import functional as F

import closedform as cf

from .helpers import backbone, batches, head, matrix, problem, relative

LOW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@LOW
def test_autocast_solves_exactly_and_predicts_low(dtype):
    layer = head(6, 2, cf.Proximal(1.0), dtype=torch.float32)
    exact = head(6, 2, cf.Proximal(1.0), dtype=torch.float32)
    phi, y = (t.float() for t in problem(4, 6, 2))
    with torch.autocast("cpu", dtype):
        layer.solve(phi.to(dtype), y)
        assert layer(phi).dtype == dtype
    exact.solve(phi.to(dtype).float(), y)
    assert torch.equal(matrix(layer), matrix(exact))


@LOW
def test_inside_one_autocast_region_the_new_weights_are_used(dtype):
    layer = head(6, 2, cf.Ridge(1e-3), dtype=torch.float32)
    phi, y = (t.float() for t in problem(4, 6, 2))
    with torch.autocast("cpu", dtype):
        before = layer(phi)
        layer.solve(phi, y)
        after = layer(phi)
    assert not torch.equal(before, after)
    assert torch.equal(after, F.linear(phi.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype)))


@LOW
def test_under_autocast_a_solve_between_forward_and_backward_raises(dtype):
    net = backbone(dtype=torch.float32)
    layer = head(6, 2, cf.Proximal(1.0), dtype=torch.float32)
    x, y = batches(1, dtype=torch.float32)[0]
    with torch.autocast("cpu", dtype):
        phi = net(x)
        loss = F.mse_loss(layer(phi), y)
        layer.solve(phi, y)
    with pytest.raises(RuntimeError, match="solved between a forward and its backward"):
        loss.backward()


@LOW
def test_gradients_under_autocast_are_those_of_a_plain_layer(dtype):
    layer = head(6, 2, dtype=torch.float32)
    plain = layer.to_linear().requires_grad_(False)
    x = torch.randn(3, 6)
    gradients = []
    for module in (layer, plain):
        phi = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype):
            module(phi).float().square().sum().backward()
        gradients.append(phi.grad)
    assert gradients[0].dtype == torch.float32
    assert torch.allclose(*gradients, rtol=1e-2, atol=1e-3)


def test_features_of_another_dtype_outside_autocast():
    layer = head(6, 2, dtype=torch.float32)
    phi = torch.randn(3, 6, dtype=torch.bfloat16, requires_grad=True)
    out = layer(phi)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert phi.grad.dtype == torch.bfloat16


def test_training_in_half_precision_with_a_gradient_scaler():
    """The scaler multiplies the loss, not the targets, so the head is the same; steps with overflow leave it sound."""
    torch.manual_seed(0)
    net = backbone(width=16, dtype=torch.float32)
    layer = cf.ClosedFormLinear(16, 2, rule=cf.Proximal("auto"))
    optimizer = torch.optim.SGD([*net.parameters(), *layer.parameters()], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    x = torch.randn(64, 3)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)
    losses = []
    for _ in range(200):
        with torch.autocast("cpu", torch.float16):
            phi = net(x)
            layer.solve(phi, y)
            loss = F.mse_loss(layer(phi).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert int(layer.rejected) == 0


def test_bfloat16_training_follows_float32():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)
    final = []
    for dtype in (torch.float32, torch.bfloat16):
        net = backbone(width=16, dtype=torch.float32)
        layer = cf.ClosedFormLinear(16, 2, rule=cf.Kalman(0.95))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(100):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                phi = net(x)
                layer.solve(phi, y)
                loss = F.mse_loss(layer(phi).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        final.append(float(loss.detach()))
    assert final[1] == pytest.approx(final[0], rel=0.3)  # a rounding error a step makes a fifth of difference after 100


def test_double_head_under_autocast_stays_double():
    layer = head(6, 2, cf.Proximal(1.0))
    phi, y = problem(4, 6, 2)
    with torch.autocast("cpu", torch.bfloat16):
        layer.solve(phi, y)
        assert layer(phi).dtype == torch.float64
    other = head(6, 2, cf.Proximal(1.0))
    other.solve(phi, y)
    assert relative(matrix(layer), matrix(other)) == 0


def test_jacobians_per_sample_through_a_cast_layer():
    layer = head(6, 2, dtype=torch.float32)
    phi = torch.randn(3, 6, dtype=torch.bfloat16)
    jacobian = torch.func.vmap(torch.func.jacrev(layer))(phi)
    assert torch.equal(jacobian, layer.weight.bfloat16().expand(3, 2, 6))


def test_the_default_dtype_has_no_part_in_a_filter():
    """Lightning's precision "bf16-true" sets it for the time of training."""
    noises = []
    for dtype in (torch.float64, torch.bfloat16):
        layer = head(5, 2, cf.Kalman(0.99), dtype=torch.float64)
        for seed in range(6):
            phi, y = problem(8, 5, 2, seed=seed)
            torch.set_default_dtype(dtype)
            try:
                layer.solve(phi, y)
            finally:
                torch.set_default_dtype(torch.float32)
        noises.append(layer.memory_noise)
    assert torch.equal(*noises)
