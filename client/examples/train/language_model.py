# SPDX-License-Identifier: Apache-2.0
"""The model: a Llama-style decoder over bytes. `client/examples/model.cc` is the same in C++."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class ModelShape:
  layers: int = 6
  width: int = 256
  query_heads: int = 8
  kv_heads: int = 4
  head_dim: int = 32
  hidden: int = 640
  vocabulary: int = 256
  max_positions: int = 4096
  rope_theta: float = 10000.0
  norm_epsilon: float = 1e-5


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
  """Rotary position embedding; element i of a head turns together with element i + head_dim / 2."""
  first, second = x.float().chunk(2, dim=-1)
  rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
  return rotated.to(x.dtype)


class DecoderLayer(nn.Module):

  def __init__(self, shape: ModelShape, dropout: float):
    super().__init__()
    self.shape = shape
    self.dropout = dropout
    query_width = shape.query_heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    self.attention_norm = nn.Parameter(torch.ones(shape.width))
    self.query = nn.Linear(shape.width, query_width, bias=False)
    self.key = nn.Linear(shape.width, kv_width, bias=False)
    self.value = nn.Linear(shape.width, kv_width, bias=False)
    self.attention_output = nn.Linear(query_width, shape.width, bias=False)
    self.feed_forward_norm = nn.Parameter(torch.ones(shape.width))
    self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
    self.up = nn.Linear(shape.width, shape.hidden, bias=False)
    self.down = nn.Linear(shape.hidden, shape.width, bias=False)

  def attend(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    batch, length, _ = x.shape
    shape = self.shape

    def heads(projected: torch.Tensor, count: int) -> torch.Tensor:
      return projected.view(batch, length, count, shape.head_dim).transpose(1, 2)

    group = shape.query_heads // shape.kv_heads
    query = rotate(heads(self.query(x), shape.query_heads), cosine, sine)
    key = rotate(heads(self.key(x), shape.kv_heads), cosine, sine)
    value = heads(self.value(x), shape.kv_heads)
    mixed = F.scaled_dot_product_attention(query, key.repeat_interleave(group, 1),
                                           value.repeat_interleave(group, 1), is_causal=True)
    return self.attention_output(mixed.transpose(1, 2).reshape(batch, length, -1))

  def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    normed = F.rms_norm(x, (self.shape.width,), self.attention_norm, self.shape.norm_epsilon)
    x = x + F.dropout(self.attend(normed, cosine, sine), self.dropout, self.training)
    normed = F.rms_norm(x, (self.shape.width,), self.feed_forward_norm, self.shape.norm_epsilon)
    hidden = F.silu(self.gate(normed)) * self.up(normed)
    return x + F.dropout(self.down(hidden), self.dropout, self.training)


class LanguageModel(nn.Module):

  def __init__(self, shape: ModelShape = ModelShape(), dropout: float = 0.0):
    super().__init__()
    self.shape = shape
    self.dropout = dropout
    self.embedding = nn.Embedding(shape.vocabulary, shape.width)
    self.layers = nn.ModuleList(DecoderLayer(shape, dropout) for _ in range(shape.layers))
    self.final_norm = nn.Parameter(torch.ones(shape.width))
    frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
    angle = torch.outer(torch.arange(shape.max_positions).double(), frequency)
    self.register_buffer("cosine", angle.cos().float(), persistent=False)
    self.register_buffer("sine", angle.sin().float(), persistent=False)
    self.initialize()

  def initialize(self) -> None:
    for name, parameter in self.named_parameters():
      if parameter.dim() == 2:
        residual = name.endswith(("attention_output.weight", "down.weight"))
        scale = (2 * self.shape.layers) ** -0.5 if residual else 1.0
        nn.init.normal_(parameter, std=0.02 * scale)

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [batch][length][vocabulary] for tokens [batch][length]."""
    length = tokens.shape[1]
    x = F.dropout(self.embedding(tokens), self.dropout, self.training)
    for layer in self.layers:
      x = layer(x, self.cosine[:length], self.sine[:length])
    x = F.rms_norm(x, (self.shape.width,), self.final_norm, self.shape.norm_epsilon)
    return F.linear(x, self.embedding.weight)
