"""What people do with a trained model: export it, save it as safetensors, put error bars on it with laplace-torch."""

import copy
import warnings

import pytest
import torch

import closedform as cf

from .helpers import batches, relative


@pytest.fixture(scope="module")
def trained():
    """A small model in eval mode, with what training leaves in a head."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6), torch.nn.Tanh())
    head = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(0.9, lam=1.0))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(8, dtype=torch.float32):
        cf.training.algorithm1(net, head, optimizer, x, y)
    return torch.nn.Sequential(net, head).eval()


def inputs(n=7):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("plain", [False, True], ids=["head", "to_linear"])
def test_torch_export_takes_any_batch_size(trained, plain):
    model = torch.nn.Sequential(trained[0], trained[1].to_linear()) if plain else trained
    exported = torch.export.export(model, (inputs(),), dynamic_shapes=({0: torch.export.Dim("n")},))
    for n in (1, 7, 20):
        assert torch.allclose(exported.module()(inputs(n)), trained(inputs(n)), atol=1e-6)
    # an eval forward is a matrix product and nothing of the solver
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert called == {"aten.linear.default", "aten.tanh.default"}


def test_onnx_gives_the_same_numbers(trained, tmp_path):
    import onnxruntime

    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            trained, (inputs(),), path, input_names=["x"], dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (1, 7, 20):
        (out,) = session.run(None, {"x": inputs(n).numpy()})
        assert torch.allclose(torch.from_numpy(out), trained(inputs(n)), atol=1e-5)


def test_safetensors_bring_everything_back_and_training_goes_on(trained, tmp_path):
    from safetensors.torch import load_model, save_model

    path = str(tmp_path / "model.safetensors")
    save_model(trained, path)
    torch.manual_seed(1)
    fresh = copy.deepcopy(trained)
    fresh[0][0].reset_parameters()
    fresh[1].reset_parameters()
    assert not torch.equal(fresh(inputs()), trained(inputs()))
    load_model(fresh, path)
    whole = copy.deepcopy(trained)
    for model in (fresh, whole):
        for x, y in batches(3, seed=9, dtype=torch.float32):
            model[1].solve(model[0](x), y)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], tensor), key


def test_a_low_precision_head_with_its_master_goes_through_safetensors(tmp_path):
    from safetensors.torch import load_model, save_model

    head = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(1.0), dtype=torch.bfloat16)
    head.solve(torch.randn(5, 6), torch.randn(5, 2))
    save_model(head, str(tmp_path / "head.safetensors"))
    fresh = cf.ClosedFormLinear(6, 2, rule=cf.Proximal(1.0), dtype=torch.bfloat16)
    load_model(fresh, str(tmp_path / "head.safetensors"))
    assert torch.equal(fresh.master, head.master)
    assert fresh.master.dtype == torch.float32


def test_laplace_torch_puts_error_bars_on_the_plain_layer(trained):
    """With a Gaussian likelihood and the exact curvature of a linear layer its posterior is known in closed form."""
    laplace = pytest.importorskip("laplace", reason="pip install 'closedform[laplace]'")
    model = torch.nn.Sequential(trained[0], trained[1].to_linear())
    data = [torch.cat(parts) for parts in zip(*batches(8, dtype=torch.float32))]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = laplace.Laplace(
            model, "regression", subset_of_weights="last_layer", hessian_structure="full", prior_precision=2.0
        )
        posterior.fit(loader)
        mean, variance = posterior(inputs())
    assert torch.allclose(mean, trained(inputs()), atol=1e-6)
    with torch.no_grad():
        X, X_new = (torch.nn.functional.pad(trained[0](x), (0, 1), value=1.0).double() for x in (data[0], inputs()))
    P = torch.linalg.inv(X.T @ X + 2.0 * torch.eye(7, dtype=torch.float64))
    expected = (X_new @ P * X_new).sum(1)[:, None].expand(-1, 2)
    assert relative(variance.diagonal(dim1=1, dim2=2).double(), expected) < 1e-3
