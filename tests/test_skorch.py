"""The skorch callback gives the weights of the plain loop, and survives what scikit-learn does to estimators."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import closedform as cf

from .helpers import batches, relative


@pytest.fixture(scope="module")
def host():
    import skorch

    from closedform.integrations.skorch import ClosedFormCallback

    return skorch, ClosedFormCallback


class Model(torch.nn.Module):
    def __init__(self, forget=0.9, solved=True, loss=None, called=True):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh())
        self.fc = cf.ClosedFormLinear(6, 2, rule=cf.Kalman(forget, lam=1.0), loss=loss)
        if not solved:
            self.fc = torch.nn.Linear(6, 2)
        self.called = called

    def forward(self, x):
        phi = self.net(x)
        return self.fc(phi) if self.called else phi[:, :2]


def data():
    parts = batches(8, dtype=torch.float32)
    return torch.cat([x for x, _ in parts]).numpy(), torch.cat([y for _, y in parts]).numpy()


def regressor(host, *callbacks, **kwargs):
    skorch, callback = host
    torch.manual_seed(0)
    settings = {"max_epochs": 2, "batch_size": 5, "lr": 0.1, "train_split": None, "verbose": 0}
    return skorch.NeuralNetRegressor(Model, callbacks=list(callbacks) or [callback()], **settings | kwargs)


def plain(criterion=F.mse_loss, y=None, **kwargs):
    torch.manual_seed(0)
    model = Model(**kwargs)
    x, targets = map(torch.as_tensor, data())
    targets = targets if y is None else torch.as_tensor(y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for rows in torch.arange(40).split(5):
            model.fc.observe(targets[rows])
            loss = criterion(model(x[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def same(a, b):
    for key, tensor in b.state_dict().items():
        assert torch.equal(a.state_dict()[key], tensor), key


def test_the_weights_are_the_plain_loops(host):
    net = regressor(host).fit(*data())
    same(net.module_, plain())
    assert net.history[:, "rejected_solves"] == [0, 0]


def test_classes(host):
    skorch, callback = host
    x, y = data()
    y = (y[:, 0] > 0).astype(np.int64)
    torch.manual_seed(0)
    net = skorch.NeuralNetClassifier(
        Model,
        module__loss=cf.CrossEntropy(),
        criterion=torch.nn.CrossEntropyLoss,
        callbacks=[callback()],
        max_epochs=2,
        batch_size=5,
        lr=0.1,
        train_split=None,
        verbose=0,
    ).fit(x, y)
    same(net.module_, plain(F.cross_entropy, y, loss=cf.CrossEntropy()))


def test_clone_pipeline_and_grid_search(host):
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    net = regressor(host)
    copy = clone(net.fit(*data()))
    torch.manual_seed(0)
    same(copy.fit(*data()).module_, net.module_)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), net), {"neuralnetregressor__module__forget": [0.5, 0.99]}, cv=2
    )
    search.fit(*data())
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert int(search.best_estimator_[-1].module_.fc.step) == 16


def test_validation_batches_are_not_solved_and_partial_fit_goes_on(host):
    skorch, _ = host
    net = regressor(host, train_split=skorch.dataset.ValidSplit(2)).fit(*data())
    assert int(net.module_.fc.step) == 8  # half of the rows, twice
    before = net.module_.fc.weight.clone()
    net.partial_fit(*data())
    assert int(net.module_.fc.step) == 16
    assert relative(net.module_.fc.weight, before) > 1e-4


@pytest.mark.filterwarnings("ignore")  # those of torch.compile about itself
def test_a_named_head_in_a_compiled_module(host):
    compiled = {"compile": True, "compile__backend": "eager"}  # without the minutes that generated code takes
    net = regressor(host, host[1](name="fc"), **compiled).fit(*data())
    expected = plain()
    assert int(net.module_.fc.step) == int(expected.fc.step) == 16
    assert relative(net.module_.fc.weight, expected.fc.weight) < 1e-5


def test_bad_use_is_told_in_a_sentence(host):
    _, callback = host
    with pytest.raises(ValueError, match="Model has no ClosedFormLinear, so there is nothing to solve"):
        regressor(host, module__solved=False).fit(*data())
    with pytest.raises(ValueError, match="no ClosedFormLinear called 'head'; it has fc"):
        regressor(host, callback(name="head")).fit(*data())
    with pytest.raises(
        ValueError, match="forward of Model ended without a forward of the ClosedFormLinear in training mode"
    ):
        regressor(host, module__called=False).fit(*data())
    with pytest.raises(ValueError, match="No y-values are given"):  # skorch's own sentence
        regressor(host).fit(data()[0], None)
    with pytest.raises(ValueError, match=r"y must have shape \(5, 2\) to go with phi \(5, 6\), got \(5, 1\)"):
        regressor(host).fit(data()[0], data()[1][:, :1])
