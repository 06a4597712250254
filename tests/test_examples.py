"""The examples run, are short, and show what they say."""

import warnings
from pathlib import Path

import pytest
import torch

from .helpers import relative
from .scripts import example

FOLDER = Path(__file__).parents[1] / "examples"


def test_a_loss_of_ones_own(capsys):
    module = example("custom_loss")
    errors = module.main(quick=True)
    assert errors["Poisson"] < 0.015
    assert errors["Poisson"] < 0.6 * errors["Squared"]
    assert "Poisson" in capsys.readouterr().out
    loss = module.Poisson(b=1.0)
    z = torch.linspace(-4, 4, 81, dtype=torch.float64)[:, None].requires_grad_()
    y = torch.full_like(z, 2.0).detach()
    (gradient,) = torch.autograd.grad(loss.value(z, y).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), z)
    assert relative(loss.gradient(z, y), gradient) < 1e-12
    assert 0.9 * loss.curvature < float(second.max()) <= loss.curvature * (1 + 1e-12)


def test_instrumental_variables(capsys):
    pytest.importorskip("sklearn")
    errors = example("instrumental_variables").main(quick=True)
    assert errors["deep features"] < 0.5 * errors["two-stage least squares"]
    assert errors["deep features"] < 0.5 * errors["least squares"]
    assert "E[g(X)|Z] = 0" in capsys.readouterr().out


def test_regression_in_a_plain_loop(capsys):
    errors = example("regression").main(quick=True)
    assert max(errors["solved, Proximal"], errors["solved, Kalman"]) < 0.25 * errors["learned"]
    assert "solved, Kalman" in capsys.readouterr().out


def test_a_fourier_neural_operator(capsys):
    errors = example("fno").main(quick=True)
    assert errors["solved"] < 0.3 * errors["learned"]
    for name in ("learned", "solved"):
        assert 0.9 < errors[f"{name}, all points"] / errors[name] < 1.1
    assert "on 256" in capsys.readouterr().out


def test_streaming(capsys):
    errors = example("streaming").main(quick=True)
    assert errors["following"] < 0.5 * errors["mean"]
    assert errors["following"] < 0.2 * errors["once"]
    assert "partial_fit" in capsys.readouterr().out


def test_uncertainty(capsys):
    figures = example("uncertainty").main(quick=True)
    assert 0.92 < figures["inside"] < 0.98
    assert 0.18 < figures["noise"] < 0.24
    assert figures["far"] > figures["gap"] > figures["seen"]
    assert "#" in capsys.readouterr().out


def test_a_fine_tuned_transformer(capsys, tmp_path):
    import transformers

    transformers.logging.set_verbosity_error()
    module = example("fine_tuned_transformer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.main(quick=True) > 0.95
    assert "128 solves, 0 rejected" in capsys.readouterr().out


def test_a_pretrained_transformer_and_a_file_of_texts(capsys, tmp_path):
    """The other way in, with a model that was saved with a plain layer, and three classes in place of two."""
    import transformers

    module = example("fine_tuned_transformer")
    (tmp_path / "vocab.txt").write_text("\n".join([*module.WORDS, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    transformers.DistilBertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    sizes = {"dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 16, "vocab_size": 22}
    transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**sizes)).save_pretrained(tmp_path)
    texts, classes = module.made_up(100, seed=0)
    lines = [f"{text}\t{2 if 'film' in text else label}" for text, label in zip(texts, classes)]
    (tmp_path / "texts.tsv").write_text("\n".join(lines))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.main(quick=True, pretrained=str(tmp_path), tsv=tmp_path / "texts.tsv")
    assert "24 solves, 0 rejected" in capsys.readouterr().out  # eight times 80 texts, by 32


def test_several_machines_goes_on_from_a_checkpoint(tmp_path, capsys):
    """In one process; on two hosts see test_several_machines.py."""
    module = example("several_machines")
    whole = module.main([f"--folder={tmp_path / 'whole'}", "--steps=60"])
    module.main([f"--folder={tmp_path / 'parts'}", "--steps=30"])
    assert module.main([f"--folder={tmp_path / 'parts'}", "--steps=60"]) == whole
    assert "on from step 30" in capsys.readouterr().out
    states = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"] for name in ("whole", "parts")]
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


def test_fields_to_fields(capsys):
    errors = example("fields").main(quick=True)
    assert errors["solved"] < 0.5 * errors["learned"]
    assert errors["solved"] < 0.15
    assert "last layer solved" in capsys.readouterr().out


def test_thompson_sampling_beats_the_greedy_player():
    regrets = example("bandit").main(quick=True)
    assert regrets["Thompson"] < 0.6 * regrets["greedy"]


def test_classes_that_arrive_in_groups_are_not_forgotten():
    right = example("new_classes").main(quick=True)
    assert abs(right["solved"] - right["at once"]) < 0.01
    assert right["learned"] < 0.5 < 0.9 < right["solved"]


def test_rows_in_pieces_are_merged_and_forgotten():
    errors = example("million_rows").main(quick=True)
    assert errors["without the last"] < 0.8 * errors["all sites"]


def test_a_stream_is_followed_past_a_change(tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    means = example("stream").main(quick=True, figure=str(tmp_path / "stream.png"))
    assert (tmp_path / "stream.png").stat().st_size > 1000
    solved = [means.pop("solved, default rule"), means.pop("solved, forget 0.9")]
    assert max(solved) < 0.8 * min(means.values())


def test_a_differential_equation(capsys):
    errors = example("poisson").main(quick=True)
    assert errors["solved"] < 1e-6
    assert errors["solved"] < 1e-3 * errors["learned"]
    assert errors["trained"] < 0.5 * errors["untrained"]
    assert "points that were not used" in capsys.readouterr().out
