"""One file for numbers that are kept: tensors and a JSON text in the safetensors format, with a checksum over both.

Models and training checkpoints of `closedform.tabular` and `closedform.iv` are written and read here. Nothing in such a file
is executed when it is read, and a file with a flipped bit is refused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .extras import require
from .files import atomic

HEADER = "closedform"  # the key of the safetensors metadata: one alone, since several have no fixed order in the file
JSON_ERRORS = (ValueError, RecursionError)


def write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write header and tensors to `path`; a reader sees the old file or the new one."""
    require("writing an archive", "sklearn", "safetensors")
    from safetensors.torch import save

    text = json.dumps(header)
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    data = save(plain, metadata={HEADER: sealed(text, plain)})
    with atomic(Path(path)) as file:
        file.write(data)
    return Path(path)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors that `write` wrote; a ValueError in one sentence where the file is not such a one."""
    require("reading an archive", "sklearn", "safetensors")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as bad:
        raise ValueError(f"{path} is not a whole safetensors file: {bad}") from None
    if HEADER not in metadata:
        raise ValueError(f"{path} holds tensors, but nothing that closedform wrote")
    text = metadata[HEADER].partition("\n")[2]
    if metadata[HEADER] != sealed(text, tensors):
        raise ValueError(f"{path} is damaged: its contents do not have the checksum that was written with them")
    try:
        header = json.loads(text)
    except JSON_ERRORS as bad:
        raise ValueError(f"{path} has a header that is not JSON: {bad}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a header of {type(header).__name__}; expected a JSON object")
    return header, tensors


def sealed(text: str, tensors: dict[str, Tensor]) -> str:
    """The header as it is written: the checksum, and the text on the lines after it."""
    return f"{checksum(text, tensors)}\n{text}"


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the header's text and the name, type, shape and bytes of every tensor, in the order of the names."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode("utf-8", "surrogatepass"))
        digest.update(tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().data)
    return digest.hexdigest()
