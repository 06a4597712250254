"""A fine-tuned transformer with a solved head, by an unmodified Hugging Face Trainer.

    python examples/fine_tuned_transformer.py [--quick]                  # a tiny, randomly initialised model
    python examples/fine_tuned_transformer.py --pretrained distilbert-base-uncased --tsv reviews.tsv

The file has a text and its class (0, 1, ...) in each line, with a tab in between. Without one, the texts are made up: half
of them say something good, half something bad, and a "not" turns it around.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch

import closedform as cf
from closedform.integrations.transformers import ClosedFormMixin  # first, since it says what to install

# isort: split
import transformers

WORDS = "[PAD] a the film plot ending was is not very quite good great fine bad awful dull".split()  # noqa: SIM905


class Classifier(ClosedFormMixin, transformers.DistilBertForSequenceClassification):
    def __init__(self, config: transformers.DistilBertConfig):
        super().__init__(config)
        cf.replace_last_linear(self, "classifier", rule=cf.Proximal(), loss=cf.CrossEntropy())


def made_up(n: int, seed: int) -> tuple[list[str], list[int]]:
    rng, texts, classes = random.Random(seed), [], []
    for _ in range(n):
        good, turned = rng.random() < 0.5, rng.random() < 0.5
        judgement = rng.choice(WORDS[11:14] if good else WORDS[14:])
        opening = f"{rng.choice(WORDS[1:3])} {rng.choice(WORDS[3:6])} {rng.choice(WORDS[6:8])}"
        texts.append(f"{opening} {'not ' if turned else ''}{rng.choice(['', 'very ', 'quite '])}{judgement}")
        classes.append(int(good != turned))
    return texts, classes


def by_word(texts: list[str]) -> dict[str, torch.Tensor]:
    """What a tokenizer does, for the words that made-up texts have."""
    ids = [[WORDS.index(word) for word in text.split()] for text in texts]
    padded = torch.tensor([row + [0] * (8 - len(row)) for row in ids])
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


def samples(encoded: dict[str, torch.Tensor], classes: list[int]) -> list[dict[str, torch.Tensor]]:
    columns = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    return [{key: column[i] for key, column in columns.items()} | {"labels": y} for i, y in enumerate(classes)]


def main(quick: bool = False, pretrained: str | None = None, tsv: Path | None = None) -> float:
    """The accuracy on held-out texts."""
    if tsv is None:
        texts, classes = made_up(640 if quick else 2560, seed=0)
    else:
        lines = [line.rsplit("\t", 1) for line in tsv.read_text().splitlines() if line]
        texts, classes = [text for text, _ in lines], [int(number) for _, number in lines]
    torch.manual_seed(0)
    if pretrained is None:
        sizes = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 8}
        model, encode = Classifier(transformers.DistilBertConfig(vocab_size=len(WORDS), **sizes)), by_word
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained)
        encode = lambda texts: tokenizer(texts, padding=True, truncation=True, return_tensors="pt")  # noqa: E731
        model = Classifier.from_pretrained(pretrained, num_labels=max(classes) + 1, ignore_mismatched_sizes=True)
    data = samples(encode(texts), classes)
    held = len(data) // 5
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=8 if quick else 6,
            per_device_train_batch_size=32,
            learning_rate=5e-3 if pretrained is None else 5e-5,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=quick,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=data[held:])  # nothing new here
        trainer.train()
        logits = torch.as_tensor(trainer.predict(data[:held]).predictions)
    accuracy = float((logits.argmax(1) == torch.tensor(classes[:held])).float().mean())
    print(f"{int(model.classifier.step)} solves, {int(model.classifier.rejected)} rejected")
    print(f"accuracy on {held} held-out texts: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pretrained", help="a model's name on the hub, or its folder")
    parser.add_argument("--tsv", type=Path, help="texts and their classes")
    main(**vars(parser.parse_args()))
