# SPDX-License-Identifier: Apache-2.0
"""The weights file: a header, the tensors in bf16, a digest. MODEL.md describes it byte by byte."""

import hashlib
import pathlib
import struct

import torch

from language_model import LanguageModel, ModelShape

MAGIC = b"kvtmodel"
VERSION = 1


def ordered_tensors(model: LanguageModel) -> list[torch.Tensor]:
  """The model's tensors in the file's order; matrices are [outputs][inputs]."""
  tensors = [model.embedding.weight]
  for layer in model.layers:
    tensors += [layer.attention_norm, layer.query.weight, layer.key.weight, layer.value.weight,
                layer.attention_output.weight, layer.feed_forward_norm, layer.gate.weight,
                layer.up.weight, layer.down.weight]
  return tensors + [model.final_norm]


def write_weights(model: LanguageModel, path: pathlib.Path) -> int:
  """Writes the weights, rounded to bf16, and returns the file's size in bytes."""
  shape = model.shape
  header = MAGIC + struct.pack("<9I2f", VERSION, shape.layers, shape.width, shape.query_heads,
                               shape.kv_heads, shape.head_dim, shape.hidden, shape.vocabulary,
                               shape.max_positions, shape.rope_theta, shape.norm_epsilon)
  payload = b"".join(
      tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
      for tensor in ordered_tensors(model))
  contents = header + payload
  path.write_bytes(contents + hashlib.sha256(contents).digest())
  return path.stat().st_size


def read_weights(path: pathlib.Path) -> LanguageModel:
  """Reads a file written by `write_weights`; raises ValueError if it is damaged."""
  data = path.read_bytes()
  contents, digest = data[:-32], data[-32:]
  if contents[:8] != MAGIC or hashlib.sha256(contents).digest() != digest:
    raise ValueError(f"{path}: not an intact weights file")
  version, *sizes = struct.unpack_from("<9I2f", contents, len(MAGIC))
  if version != VERSION:
    raise ValueError(f"{path}: version {version} is not {VERSION}")
  model = LanguageModel(ModelShape(*sizes))
  offset = len(MAGIC) + struct.calcsize("<9I2f")
  with torch.no_grad():
    for tensor in ordered_tensors(model):
      count = tensor.numel()
      values = torch.frombuffer(bytearray(contents[offset:offset + 2 * count]),
                                dtype=torch.bfloat16)
      tensor.copy_(values.float().view_as(tensor))
      offset += 2 * count
  return model
