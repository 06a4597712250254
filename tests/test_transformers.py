"""An unmodified Trainer of transformers gives the weights of the plain loop on a model with the mixin."""

import copy
import logging
import re
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import closedform as cf
from closedform.integrations import head_of

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


def data(kind="classes", ignored=0.0):
    g = torch.Generator().manual_seed(0)
    rows = ROWS * STEPS
    ids = torch.randint(20, (rows, LENGTH), generator=g)
    labels = torch.randint(3, (rows,), generator=g)
    if kind == "regression":
        labels = torch.randn(rows, generator=g)
    if kind == "tokens":
        labels = torch.randint(3, (rows, LENGTH), generator=g)
        labels[torch.rand(rows, LENGTH, generator=g) < 0.3] = -100
    if ignored:
        labels[torch.rand(rows, generator=g) < ignored] = -100
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
            weight = None if kind == "regression" else (y != -100).float()
            if weight is None or weight.any():
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


@pytest.mark.parametrize("kind", ["classes", "regression", "tokens"])
def test_accumulation_is_the_mean_of_the_micro_batches(host, kind, tmp_path):
    """Which Trainer does not take with the stock classes, whose losses know nothing of `num_items_in_batch`."""
    samples = data(kind)
    model = train(host, build(host, kind), samples, tmp_path, gradient_accumulation_steps=2)
    close(model, plain(build(host, kind), samples, kind, every=2))


@pytest.mark.parametrize("kind", ["classes", "tokens"])
def test_ignored_labels_do_not_count_and_a_batch_of_them_is_not_solved(host, kind, tmp_path):
    samples = data(kind, ignored=0.3)
    for sample in samples[ROWS : 2 * ROWS]:
        sample["labels"] = torch.full_like(sample["labels"], -100)
    model = train(host, build(host, kind), samples, tmp_path)
    close(model, plain(build(host, kind), samples, kind))
    assert int(model.classifier.step) == int(model.classifier.attempts) == STEPS - 1
    with pytest.raises(ValueError, match="labels must be 0 to 2, got -1"):
        model.train()(torch.zeros(1, LENGTH, dtype=torch.long), labels=torch.full_like(samples[0]["labels"], -1)[None])


def test_bf16(host, tmp_path):
    samples = data()
    model = train(host, build(host), samples, tmp_path, bf16=True)
    close(model, plain(build(host), samples, bf16=True))


def partly_ignored():
    """Three batches for two ranks: both have labels, the second alone, neither."""
    samples = data("tokens")
    ids, y = (torch.stack([sample[key] for sample in samples[: 3 * ROWS]]) for key in ("input_ids", "labels"))
    ids, y = ids.split(ROWS), y.split(ROWS)
    y[1][: ROWS // 2] = -100
    y[2][:] = -100
    return list(zip(ids, y))


def two_ranks(rank, folder):
    import transformers

    from closedform.integrations.transformers import ClosedFormMixin

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    model = build((transformers, ClosedFormMixin), "tokens").train()
    for ids, y in partly_ignored():
        model(ids.split(ROWS // 2)[rank], labels=y.split(ROWS // 2)[rank])
    torch.save(model.classifier.state_dict(), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_a_rank_whose_labels_are_all_ignored_does_not_keep_the_others_waiting(host, tmp_path):
    torch.multiprocessing.spawn(two_ranks, (tmp_path,), nprocs=2)
    one = build(host, "tokens").train()
    for ids, y in partly_ignored():
        one(ids, labels=y)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert int(one.classifier.step) == 2
    for key, tensor in one.classifier.state_dict().items():
        assert torch.equal(ranks[0][key], ranks[1][key]), key
        assert torch.allclose(ranks[0][key], tensor, rtol=1e-5, atol=1e-7), key


def language_model(host, base="GPT2LMHeadModel", solved="lm_head", forward=None, **config):
    """Of a class whose name says nothing, as a user's might."""
    transformers, mixin = host

    class Model(mixin, getattr(transformers, base)):
        def __init__(self, config):
            super().__init__(config)
            cf.replace_last_linear(self, solved, rule=cf.Proximal(1.0), loss=cf.CrossEntropy())

    if forward is not None:
        Model.forward = forward
    torch.manual_seed(0)
    kind = getattr(transformers, base).config_class
    return Model(kind(**{"vocab_size": 20, "tie_word_embeddings": False} | config))


SMALL = {
    "GPT2LMHeadModel": {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "LlamaForCausalLM": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    "BartForCausalLM": {"d_model": 8, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8}
    | {"max_position_embeddings": 8, "dropout": 0.0, "is_decoder": True, "is_encoder_decoder": False},
}


def texts():
    """Each token says which one follows it."""
    g = torch.Generator().manual_seed(0)
    ids = (torch.randint(18, (ROWS * STEPS, 1), generator=g) + torch.arange(LENGTH)) % 18
    padded = ids.clone()
    padded[::3, -2:] = -100
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, padded)]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("base", SMALL)
def test_a_language_model_is_solved_for_what_its_loss_asks_of_it(host, base, every, tmp_path):
    """Most shift the labels by a token; Bart, of the same kind by its name, does not."""
    samples, shifts = texts(), base != "BartForCausalLM"
    model = train(host, language_model(host, base, **SMALL[base]), samples, tmp_path, gradient_accumulation_steps=every)
    theirs = language_model(host, base, **SMALL[base]).train()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    body = theirs.base_model if shifts else theirs.base_model.decoder
    micro = [torch.stack([row["labels"] for row in samples[i : i + ROWS]]) for i in range(0, len(samples), ROWS)]
    if shifts:
        micro = [F.pad(y[:, 1:], (0, 1), value=-100) for y in micro]
    for step, y in enumerate(micro):
        phi = body(torch.stack([row["input_ids"] for row in samples[step * ROWS : (step + 1) * ROWS]]))[0]
        theirs.lm_head.solve(phi, y.clamp(min=0), (y != -100).float())
        loss = F.cross_entropy(theirs.lm_head(phi).reshape(-1, 20), y.reshape(-1), reduction="sum")
        # over all tokens of a step, or the mean of the micro-batches' means
        group = micro[step // every * every :][:every]
        counts = sum(int((other != -100).sum()) for other in group) if shifts else every * int((y != -100).sum())
        (loss / counts).backward()
        if (step + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    close(model, theirs)
    assert int(model.lm_head.step) == STEPS
    assert model.accepts_loss_kwargs == shifts


def test_what_a_model_asks_for_is_told_from_its_bases(host):
    small = SMALL["GPT2LMHeadModel"]

    def forward(self, *args, labels=None, **kwargs):
        return super(type(self), self).forward(*args, labels=labels, **kwargs)

    model = language_model(host, forward=forward, **small)
    labels = torch.tensor([[3, 4, 5]])
    y, weight = model.solved_targets(model.lm_head, labels)
    assert y.tolist() == [[4, 5, 0]]
    assert weight.tolist() == [[1, 1, 0]]
    assert model.accepts_loss_kwargs is True
    # a loss of one's own in its place gets the labels as they are, and so has to shift them
    model.loss_function = lambda logits, labels, **kwargs: F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    assert model.solved_targets(model.lm_head, labels)[0].tolist() == [[4, 5, 0]]
    assert model.accepts_loss_kwargs is False
    model.accepts_loss_kwargs = True
    assert model.accepts_loss_kwargs is True
    tagger = language_model(host, "LlamaForTokenClassification", "score", **SMALL["LlamaForCausalLM"], num_labels=3)
    assert (
        tagger.loss_type == "ForTokenClassification"
    )  # transformers would take the class "Model" for a language model
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    assert tagger.train()(ids, labels=ids).loss.isfinite()
    assert int(tagger.score.step) == 1
    assert build(host).accepts_loss_kwargs is False
    assert language_model(host, **small).accepts_loss_kwargs is True
    bare = language_model(host, forward=lambda self, input_ids, labels=None: None, **small)
    assert bare.accepts_loss_kwargs is False  # it has no way to take them


def own_forward(self, input_ids, labels=None, **kwargs):
    """A loss of one's own, which does not shift, and no call of a base's forward."""
    logits = head_of(self)(self.base_model(input_ids)[0])
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return {"loss": loss, "logits": logits}


IMAGE = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}


@pytest.mark.parametrize(
    ("base", "config", "forward", "whose"),
    [
        ("ImageGPTForCausalImageModeling", IMAGE, None, "ImageGPTForCausalImageModeling"),
        ("GPT2DoubleHeadsModel", SMALL["GPT2LMHeadModel"], None, "GPT2DoubleHeadsModel"),
        ("LlamaForCausalLM", SMALL["LlamaForCausalLM"], own_forward, "Model"),
    ],
    ids=["shifted by hand", "two heads", "a forward of one's own"],
)
def test_a_language_model_with_a_loss_of_its_own_must_say_what_it_is_solved_for(host, base, config, forward, whose):
    model = language_model(host, base, forward=forward, **config).train()
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    assert model.accepts_loss_kwargs is False
    with pytest.raises(
        ValueError, match=rf"forward of {whose} does not ask for loss_function.*override solved_targets"
    ):
        model(ids, labels=ids)
    assert int(model.lm_head.attempts) == 0
    type(model).solved_targets = lambda self, head, labels: (labels, None)
    model(ids, labels=ids)
    assert int(model.lm_head.step) == 1


def test_what_the_page_says_of_imagegpt_is_what_its_loss_does(host):
    page = (Path(__file__).parents[1] / "docs" / "trainers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(def solved_targets.*?)```", page, re.S)
    space = {"torch": torch}
    exec(block, space)  # the page is ours
    model = language_model(
        host, "ImageGPTForCausalImageModeling", **IMAGE, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    type(model).solved_targets = space["solved_targets"]
    ids = torch.randint(19, (4, 6), generator=torch.Generator().manual_seed(0))
    out = model.train()(ids, labels=ids)
    assert int(model.lm_head.step) == 1
    y, weight = model.solved_targets(model.lm_head, ids)
    values = F.cross_entropy(out.logits.transpose(1, 2), y, reduction="none")
    assert torch.allclose((values * weight).sum() / weight.sum(), out.loss, rtol=1e-5)


def test_a_loss_of_ones_own_in_another_model_has_its_labels_one_by_one(host):
    config = SMALL["LlamaForCausalLM"] | {"num_labels": 3}
    model = language_model(host, "LlamaForTokenClassification", "score", own_forward, **config)
    labels = torch.tensor([[1, -100, 2]])
    y, weight = model.solved_targets(model.score, labels)
    assert (y.tolist(), weight.tolist()) == ([[1, 0, 2]], [[1, 0, 1]])


def test_what_a_class_says_of_its_loss_is_kept(host):
    """Some of transformers say that theirs does not divide, though it could."""
    transformers, mixin = host
    base = type("Base", (transformers.GPT2LMHeadModel,), {"accepts_loss_kwargs": False})
    model = type("Model", (mixin, base), {})(transformers.GPT2Config(vocab_size=20, **SMALL["GPT2LMHeadModel"]))
    assert model.accepts_loss_kwargs is False


def test_ranks_ask_one_another_only_where_labels_may_be_ignored(host, monkeypatch):
    from closedform.integrations import transformers

    asked = []

    def agree(*_):
        asked.append(1)
        return cf.distributed.Agreement([1, 1], False)

    monkeypatch.setattr(transformers, "distributed", types.SimpleNamespace(active=lambda group: True, agree=agree))
    for kind, expected in (("regression", 0), ("classes", 1), ("tokens", 2)):
        model, sample = build(host, kind).train(), data(kind)[0]
        model(sample["input_ids"][None], labels=sample["labels"][None])
        assert len(asked) == expected, kind
    # one of one's own may have weights on some ranks alone
    model = build(host, "regression").train()
    model.solved_targets = lambda head, labels: (labels[:, None], None)
    sample = data("regression")[0]
    model(sample["input_ids"][None], labels=sample["labels"][None])
    assert len(asked) == 3


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
    model.train().forward = lambda input_ids, labels: input_ids
    with pytest.raises(
        ValueError, match="forward of Model ended without a forward of the ClosedFormLinear in training"
    ):
        model(ids, labels=torch.zeros(2, dtype=torch.long))
    assert int(model.classifier.attempts) == 0


@pytest.mark.parametrize("origin", ["plain", "base", "solved"])
def test_a_class_without_the_mixin_loads_a_fresh_memory_and_says_nothing_of_it(host, origin, tmp_path, caplog):
    transformers, _ = host
    config, stock = build(host).config, transformers.BertForSequenceClassification

    class Replaced(stock):
        def __init__(self, config):
            super().__init__(config)
            cf.replace_last_linear(self, "classifier", rule=cf.Kalman(0.9, lam=1.0), loss=cf.CrossEntropy())

    first = Replaced(config)
    first.classifier.solve(torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0]))
    saved = {"plain": stock(config), "base": transformers.BertModel(config), "solved": first}[origin]
    saved.save_pretrained(tmp_path)
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(caplog.handler)
    try:
        model = copy.deepcopy(Replaced.from_pretrained(tmp_path))
    finally:
        logger.removeHandler(caplog.handler)
    said = "".join(record.getMessage() for record in caplog.records)
    assert not re.search(r"classifier\.(step|attempts|master|memory_)", said)
    head = model.classifier
    assert not head.weight.requires_grad
    assert int(head.step) == int(head.attempts) == (origin == "solved")
    expected = first.classifier if origin == "solved" else cf.ClosedFormLinear(8, 3, rule=head.rule)
    for name, tensor in expected._memory().items():
        assert torch.equal(head._memory()[name], tensor), name
    head.solve(torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0]))
    assert int(head.rejected) == 0


def test_loading_says_nothing_of_the_heads_memory(host, tmp_path, caplog):
    """Neither where a plain checkpoint has none of it, nor where a plain model takes a checkpoint without it."""
    transformers, _ = host
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(caplog.handler)
    try:
        solved = build(host)
        plain_kind = transformers.BertForSequenceClassification
        plain_kind(solved.config).save_pretrained(tmp_path / "plain")
        model = type(solved).from_pretrained(tmp_path / "plain")
        assert int(model.classifier.step) == 0
        solved.classifier.solve(torch.randn(5, 8), torch.tensor([0, 1, 2, 1, 0]))
        solved.save_pretrained(tmp_path / "without", memory=False)
        loaded = plain_kind.from_pretrained(tmp_path / "without")
        assert torch.equal(loaded.classifier.weight, solved.classifier.weight)
        solved.save_pretrained(tmp_path / "whole")
        assert int(type(solved).from_pretrained(tmp_path / "whole").classifier.step) == 1
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record.getMessage() for record in caplog.records if "classifier" in record.getMessage()]
