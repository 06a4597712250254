"""Which layer of a model is the last one, and what takes its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import closedform as cf


def test_replacing_the_last_layer():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4), nn.Identity())).double()
    model.eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    before = model(x)
    layer = cf.replace_last_linear(model, rule=cf.Kalman(0.9))
    assert model[2][0] is layer
    assert type(model[0]) is nn.Linear
    assert isinstance(layer.rule, cf.Kalman)
    assert not layer.training
    assert torch.equal(model(x), before)
    zeros = cf.replace_last_linear(nn.Sequential(nn.Linear(3, 2, bias=False)), init="zeros")
    assert not zeros.weight.any()
    assert zeros.bias is None


def test_replacing_needs_a_layer_of_its_own():
    with pytest.raises(ValueError, match="no nn.Linear"):
        cf.replace_last_linear(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="itself an nn.Linear"):
        cf.replace_last_linear(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="itself a 1x1 convolution"):
        cf.replace_last_linear(nn.Conv2d(2, 2, 1))
    for name in ("2", "0.weight", "body.out"):
        with pytest.raises(ValueError, match=rf"no layer '{name}'.* 0, 1.0$"):
            cf.replace_last_linear(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 2))), name)
    with pytest.raises(ValueError, match="no layer 'fc'.*none"):
        cf.replace_last_linear(nn.Sequential(nn.ReLU()), "fc")
    tied = nn.ModuleDict({"embedding": nn.Embedding(7, 3), "out": nn.Linear(3, 7)})
    tied["out"].weight = tied["embedding"].weight
    with pytest.raises(ValueError, match=r"shares its weight with embedding\.weight"):
        cf.replace_last_linear(tied)


def test_a_layer_that_cannot_be_replaced_is_named():
    """The projection inside nn.MultiheadAttention is never called as a module; a lazy, subclassed or hooked layer is not
    just its weights. None of these may silently make an earlier layer the head."""
    model = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 1))
    with pytest.raises(ValueError, match=r"1.out_proj is a NonDynamicallyQuantizableLinear"):
        cf.replace_last_linear(model)
    assert cf.replace_last_linear(model, name="0") is model[0]
    with pytest.raises(ValueError, match=r"1 is a LazyLinear"):
        cf.replace_last_linear(nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2)))
    hooked = nn.Sequential(nn.Linear(3, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="Linear with hooks"):
        cf.replace_last_linear(hooked)


def test_a_convolution_in_three_dimensions_is_not_supported():
    x, wide, last = torch.randn(1, 3, 4, 4, 4), nn.Conv3d(3, 8, 3), nn.Conv3d(8, 2, 1)
    unsupported = pytest.raises(ValueError, match="nn.Conv3d is not supported, nn.Conv1d and nn.Conv2d are")
    for model in (nn.Sequential(wide, last), nn.Sequential(nn.Linear(4, 4), wide, last)):
        with unsupported:
            cf.replace_last_linear(model, example=x)
        with unsupported:
            cf.replace_last_linear(model, str(len(model) - 1))
    with unsupported:
        cf.replace_last_linear(nn.Sequential(wide, last))
    with unsupported:
        cf.replace_last_linear(nn.Sequential(nn.Linear(4, 4), last))
    with pytest.raises(ValueError, match="no 1x1 convolution$"):
        cf.replace_last_linear(nn.Sequential(wide))


def test_replacing_twice_changes_the_rule():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    first = cf.replace_last_linear(model, rule=cf.Kalman())
    second = cf.replace_last_linear(model, rule=cf.Ridge(1.0))
    assert type(model[0]) is nn.Linear
    assert model[2] is second
    assert torch.equal(first.weight, second.weight)


# ---- The layer that makes the output -------------------------------------------------------------


class ClassifierFirst(nn.Module):
    """Registers the layer that makes the output before the layers of its body."""

    def __init__(self, branch: bool = False):
        super().__init__()
        self.classifier = nn.Linear(8, 3)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.branch = branch

    def forward(self, x):
        if self.branch and x.sum() > 1e9:  # a look at values: the code cannot be traced
            return x
        return self.classifier(self.body(x))


def test_the_code_says_which_layer_is_last():
    model = ClassifierFirst()
    assert cf.replace_last_linear(model) is model.classifier
    assert type(model.body[2]) is nn.Linear


def test_an_order_that_cannot_be_told_is_an_error_that_names_the_layers():
    model = ClassifierFirst(branch=True)
    with pytest.raises(ValueError, match=r"classifier, body.0, body.2; name=.*example="):
        cf.replace_last_linear(model)
    assert type(model.body[2]) is nn.Linear


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_example_is_followed_to_the_layer_that_makes_the_output(form, frozen):
    model = ClassifierFirst(branch=True).requires_grad_(not frozen)
    x = torch.randn(5, 4)
    before = model(x)
    head = cf.replace_last_linear(model, example=form(x))
    assert head is model.classifier
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.allclose(model.eval()(x), before)


class Scale(nn.Module):
    """A layer with weights that is not torch.nn's; `branch` makes code that cannot be traced."""

    def __init__(self, branch: bool = False):
        super().__init__()
        self.factor, self.branch = nn.Parameter(torch.ones(2)), branch

    def forward(self, x):
        return x if self.branch and x.sum() > 1e9 else x * self.factor


class Custom(nn.Module):
    """One linear layer and `other`, called in the way that `call` says; counts its calls in a buffer."""

    def __init__(self, call, other):
        super().__init__()
        self.head, self.other, self.call = nn.Linear(2, 2), other, call
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.call(self, x)


@pytest.mark.parametrize(
    ("model", "layer", "follower"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.GELU(), nn.Conv2d(8, 2, 3)), "0", "2"),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LayerNorm(2)), "2", "3"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.Sequential(Scale())), "0.0", "1.0"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Tanh(), Scale(branch=True)), "0.0", "2"),
        (Custom(lambda model, x: model.other(model.head(x)).relu(), nn.PReLU()), "head", "other"),
        (Custom(lambda model, x: model.head(x) @ model.other, nn.Parameter(torch.eye(2))), "head", "other"),
    ],
)
def test_a_layer_with_weights_of_its_own_may_not_come_after_the_last_linear_one(model, layer, follower):
    before = model.get_submodule(layer)
    with pytest.raises(ValueError, match=rf"^{layer} does not make .* {follower} comes after it.*; name='{layer}'"):
        cf.replace_last_linear(model)
    assert model.get_submodule(layer) is before
    assert cf.replace_last_linear(model, layer) is model.get_submodule(layer)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: model.head(model.other(x)),
        lambda model, x: model.head(x) + model.other(x),
        lambda model, x: model.head(model.other(model.head(x))),
        lambda model, x: model.head(model.other(x) if x.sum() > 0 else x),
    ],
)
def test_layers_with_weights_elsewhere_in_the_code_are_fine(call):
    model = Custom(call, nn.LayerNorm(2))
    assert cf.replace_last_linear(model) is model.head
    assert model.calls == 0


CHANGES = {
    "softmax": nn.Softmax(-1),
    "log-softmax": nn.LogSoftmax(-1),
    "sigmoid": nn.Sigmoid(),
    "in place": nn.ReLU(inplace=True),
    "upsample": nn.Upsample(scale_factor=2),
    "mean": nn.AvgPool1d(3),
    "batch norm": nn.BatchNorm1d(5),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_example_shows_that_the_model_changes_the_output_of_the_layer(change, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), CHANGES[change]).to(dtype)
    with pytest.raises(ValueError, match=r"changes the output of 2 .* softmax; name='2'"):
        cf.replace_last_linear(model, example=torch.randn(64, 5, 4, dtype=dtype))
    assert type(model[2]) is nn.Linear


@pytest.mark.parametrize(
    "call",
    [
        lambda head, x: head(x).mT.reshape(-1),
        lambda head, x: head(x)[:, 1:, 0],
        lambda head, x: head(x).bfloat16(),
        lambda head, x: torch.stack([head(x[:, i]) for i in range(5)], 1),
        lambda head, x: {"loss": head(x).square().mean(), "parts": [head(x)]},
        lambda head, x: (head(x).softmax(-1), head(x)),
        lambda head, x: torch.view_as_complex(head(x)),
        lambda head, x: (head(x), head.bias.exp()),
    ],
)
def test_a_model_may_reshape_choose_and_cast_the_values_of_the_layer(call):
    model = Custom(lambda model, x: call(model.head, model.other(x)), nn.Linear(4, 2))
    assert cf.replace_last_linear(model, example=torch.randn(3, 5, 4)) is model.head


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_example_goes_through_functions_in_place_and_models_without_values(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).to(device)
    assert cf.replace_last_linear(model, example=torch.randn(5, 4, device=device)) is model[2]


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return {"mean": self.mean(x), "scale": self.scale(x)}


def test_an_output_of_several_layers_or_of_none_is_an_error():
    with pytest.raises(ValueError, match=r"made by several layers \((mean, scale|scale, mean)\)"):
        cf.replace_last_linear(TwoOutputs(), example=torch.randn(2, 4))
    with pytest.raises(ValueError, match="several linear layers"):
        cf.replace_last_linear(TwoOutputs())
    wide = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 3))
    with pytest.raises(ValueError, match="made by 1.weight, not by a linear layer"):
        cf.replace_last_linear(wide, example=torch.randn(1, 3, 8, 8))
    with pytest.raises(ValueError, match="give one of them"):
        cf.replace_last_linear(wide, "0", example=torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_of_kernel_1_becomes_a_field_layer(dims, bias):
    conv = (nn.Conv1d, nn.Conv2d)[dims - 1]
    model = nn.Sequential(conv(3, 6, 3, padding=1), nn.ReLU(), conv(6, 2, 1, bias=bias)).double()
    x = torch.randn(2, 3, *[5] * dims, dtype=torch.float64)
    before = model(x)
    head = cf.replace_last_linear(model, example=x, rule=cf.Ridge(1.0))
    assert isinstance(head, cf.ClosedFormConv1x1)
    assert model[2] is head
    head.observe(before.detach())
    assert torch.allclose(model.eval()(x), before)
    again = cf.replace_last_linear(model, rule=cf.Proximal(1.0))
    assert isinstance(again, cf.ClosedFormConv1x1)
    assert torch.equal(again.weight, head.weight)


def test_an_operator_that_ends_in_a_small_network_gives_its_last_layer():
    class Operator(nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = nn.ModuleList([nn.Conv1d(4, 8, 1), nn.Conv1d(8, 1, 1)])
            self.lifting = nn.Conv1d(1, 4, 1)

        def forward(self, x):
            phi = self.lifting(x.flatten(2))
            return self.projection[1](F.gelu(self.projection[0](phi))).reshape(x.shape)

    model = Operator()
    head = cf.replace_last_linear(model, example=torch.randn(2, 1, 6, 6))
    assert head is model.projection[1]
    assert (head.in_features, head.out_features, head.dims) == (8, 1, 1)
