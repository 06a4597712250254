"""One file for numbers that are kept: tensors and a JSON text in the safetensors format, with a checksum over both.

Every model, checkpoint and sum of the library is written and read here. The file is 8 bytes with the length of a JSON table
(names, types, shapes and places of the tensors, and our text), that table, and the numbers; any reader of safetensors opens
it. Nothing in it is executed, nothing larger than the file is allocated, and a file with a flipped bit is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import atomic

HEADER = "closedform"  # the key of our text in the metadata
JSON_ERRORS = (ValueError, RecursionError)
_METADATA = "__metadata__"
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write header and tensors to `path`; a reader sees the old file or the new one."""
    text = json.dumps(header)
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    table: dict[str, Any] = {_METADATA: {HEADER: sealed(text, plain)}} | dict.fromkeys(plain)
    end = 0
    order = sorted(plain, key=lambda name: (-plain[name].element_size(), name))  # so that each begins at a multiple
    for name in order:
        tensor = plain[name]
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name} is of {tensor.dtype}; expected one of {', '.join(map(str, _NAMES))}")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with atomic(Path(path)) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            file.write(_bytes(plain[name]))
    return Path(path)


def read(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors that `write` wrote, in their order; a ValueError in one sentence for any other file."""
    path = Path(path)
    data = bytearray(path.read_bytes())
    try:
        metadata, tensors = _opened(data)
    except (*JSON_ERRORS, LookupError, TypeError, AttributeError, RuntimeError) as bad:
        raise ValueError(f"{path} is not a whole safetensors file: {bad!r:.200}") from None
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
    return header, {name: tensor.to(device) for name, tensor in tensors.items()}


def _opened(data: bytearray) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file, which fill it without a gap."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"the table would end at byte {start} of {len(data)}")
    table = json.loads(data[8:start].decode())
    metadata = table.pop(_METADATA, {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata are not texts")
    tensors, at = {}, start
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, end) = _TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        sizes = [*shape, begin, end]
        if not all(type(size) is int and 0 <= size < 2**48 for size in sizes) or len(sizes) > 20:
            raise ValueError(f"the shape or the place of {name!r:.80} is none")
        count, size = math.prod(shape), torch.empty((), dtype=dtype).element_size()
        if start + begin != at or end - begin != count * size or start + end > len(data):
            raise ValueError(f"{name!r:.80} does not fill its place")
        at = start + end
        flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=start + begin) if count else None
        # copied: the numbers of one tensor need not begin where their type wants it
        tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else flat.clone().view(dtype).reshape(shape)
    if at != len(data):
        raise ValueError(f"the tensors end at byte {at} of {len(data)}")
    return metadata, {name: tensors[name] for name in table}


def sealed(text: str, tensors: dict[str, Tensor]) -> str:
    """The header as it is written: the checksum, and the text on the lines after it."""
    return f"{checksum(text, tensors)}\n{text}"


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the header's text and the name, type, shape and bytes of every tensor, in the order of the names."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode("utf-8", "surrogatepass"))
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor without gaps, as they lie in memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
