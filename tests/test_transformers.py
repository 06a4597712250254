"""An unmodified Trainer of transformers gives the weights of the plain loop on a model with the mixin."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import closedform as cf

ROWS, LENGTH, STEPS = 4, 5, 6


@pytest.fixture(scope="module")
def host():
    import transformers

    from closedform.integrations.transformers import ClosedFormMixin

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers, ClosedFormMixin


def build(host, kind="classes", rule=None, solved=True, seed=0):
    transformers, mixin = host
    base = {"tokens": "BertForTokenClassification"}.get(kind, "BertForSequenceClassification")

    class Model(mixin, getattr(transformers, base)):
        accepts_loss_kwargs = False  # its loss is a micro-batch's mean, which Trainer then divides

        def __init__(self, config):
            super().__init__(config)
            if solved:
                loss = None if kind == "regression" else cf.CrossEntropy()
                cf.replace_last_linear(self, "classifier", rule=rule or cf.Kalman(0.9, lam=1.0), loss=loss)

    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 8, "num_labels": 1 if kind == "regression" else 3}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(seed)
    return Model(transformers.BertConfig(**sizes, **dropout))


def data(kind="classes"):
    g = torch.Generator().manual_seed(0)
    rows = ROWS * STEPS
    ids = torch.randint(20, (rows, LENGTH), generator=g)
    labels = torch.randint(3, (rows,), generator=g)
    if kind == "regression":
        labels = torch.randn(rows, generator=g)
    if kind == "tokens":
        labels = torch.randint(3, (rows, LENGTH), generator=g)
        labels[torch.rand(rows, LENGTH, generator=g) < 0.3] = -100
    # "note" is no argument of forward, and Trainer drops it by forward's signature
    return [{"input_ids": i, "labels": y, "note": 0} for i, y in zip(ids, labels)]


def train(host, model, samples, folder, resume=None, **kwargs):
    transformers, _ = host
    settings = {"per_device_train_batch_size": ROWS, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
    settings |= {"optim": "sgd", "max_grad_norm": 0.0, "train_sampling_strategy": "sequential", "save_strategy": "no"}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "num_train_epochs": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(str(folder), **settings | kwargs)
        transformers.Trainer(model, arguments, train_dataset=samples).train(resume_from_checkpoint=resume)
    return model


def plain(model, samples, kind="classes", *, every=1, bf16=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    encode = model.bert
    model.train()
    for step in range(STEPS):
        rows = samples[step * ROWS : (step + 1) * ROWS]
        ids, y = (torch.stack([row[key] for row in rows]) for key in ("input_ids", "labels"))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            out = encode(ids)
            phi = out[0] if kind == "tokens" else out[1]
            weight = (y != -100).float() if kind == "tokens" else None
            model.classifier.solve(phi, y[:, None] if kind == "regression" else y.clamp(min=0), weight)
            z = model.classifier(phi)
            if kind == "regression":
                loss = F.mse_loss(z[:, 0], y)
            else:
                loss = F.cross_entropy(z.reshape(-1, 3), y.reshape(-1))
        (loss / every).backward()
        if (step + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def close(a, b, tolerance=1e-5):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for key in a:
        assert torch.allclose(a[key].float(), b[key].float(), rtol=tolerance, atol=tolerance), key


@pytest.mark.parametrize("kind", ["classes", "regression", "tokens"])
def test_the_weights_are_the_plain_loops(host, kind, tmp_path):
    samples = data(kind)
    model = train(host, build(host, kind), samples, tmp_path)
    close(model, plain(build(host, kind), samples, kind))
    assert int(model.classifier.step) == STEPS
    assert int(model.classifier.rejected) == 0


def test_accumulation_and_bf16(host, tmp_path):
    samples = data()
    model = train(host, build(host), samples, tmp_path, gradient_accumulation_steps=2)
    close(model, plain(build(host), samples, every=2))
    model = train(host, build(host), samples, tmp_path, bf16=True)
    close(model, plain(build(host), samples, bf16=True))


def test_resuming_from_a_checkpoint_and_loading_one(host, tmp_path):
    samples = data()
    whole = train(host, build(host), samples, tmp_path / "a", save_strategy="steps", save_steps=3)
    again = train(host, build(host, seed=1), samples, tmp_path / "b", tmp_path / "a" / "checkpoint-3")
    close(again, whole, 1e-7)
    assert int(again.classifier.step) == STEPS
    again.save_pretrained(tmp_path / "c")
    loaded = type(again).from_pretrained(tmp_path / "c")
    close(loaded, whole, 1e-7)
    ids = samples[0]["input_ids"][None]
    assert torch.allclose(loaded.eval()(ids).logits, whole.eval()(ids).logits, atol=1e-6)


def test_gradient_checkpointing_solves_once_a_step(host, tmp_path):
    samples = data()
    model = train(host, build(host), samples, tmp_path, gradient_checkpointing=True)
    close(model, plain(build(host), samples))
    assert int(model.classifier.attempts) == STEPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("origin", ["base", "plain", "other size", "solved"])
def test_loading_a_model_that_knows_nothing_of_the_head(host, origin, dtype, tmp_path):
    transformers, _ = host
    solved = build(host)
    solved.classifier.solve(torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0]))
    if origin == "base":
        transformers.BertModel(solved.config).save_pretrained(tmp_path)
    elif origin == "plain":
        transformers.BertForSequenceClassification(solved.config).save_pretrained(tmp_path)
    else:
        solved.save_pretrained(tmp_path)
    settings = {"num_labels": 5, "ignore_mismatched_sizes": True} if origin == "other size" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = type(solved).from_pretrained(tmp_path, dtype=dtype, **settings)
    head = model.classifier
    assert head.weight.dtype == dtype
    assert not head.weight.requires_grad
    assert not head.bias.requires_grad
    assert head.out_features == settings.get("num_labels", 3)
    assert int(head.step) == int(head.attempts) == (origin == "solved")
    expected = solved.classifier if origin == "solved" else cf.ClosedFormLinear(8, head.out_features, rule=head.rule)
    for name, tensor in expected._memory().items():
        assert torch.equal(head._memory()[name], tensor), name
    assert (head.master is None) == (dtype == torch.float32)
    if head.master is not None:
        assert torch.equal(head.master[:, :8].to(dtype), head.weight)
    model.train()(torch.zeros(4, LENGTH, dtype=torch.long), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    assert int(head.step) == 1 + (origin == "solved")
    assert int(head.rejected) == 0


def test_bad_use_is_told_in_a_sentence(host, tmp_path):
    with pytest.raises(ValueError, match="Model has no ClosedFormLinear, so there is nothing to solve"):
        train(host, build(host, solved=False), data(), tmp_path)
    without = [{"input_ids": sample["input_ids"]} for sample in data()]
    with pytest.raises(ValueError, match="Model got no labels in training mode, only input_ids"):
        train(host, build(host), without, tmp_path)
    model, ids = build(host).train(), torch.zeros(2, LENGTH, dtype=torch.long)
    with pytest.raises(ValueError, match="got no labels in training mode"):
        model(ids)
    model.eval()(ids)  # to predict needs none
    assert int(model.classifier.attempts) == 0
