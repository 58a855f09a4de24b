#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of kvtier-generate on the text of prepare_text.py and writes its weights.

  python3 prepare_text.py --output corpus.txt
  python3 train.py --text corpus.txt --output ../model/kjv_austen.kvtmodel --compile

Takes three minutes on one H200. `--device cpu --steps 5` is a smoke test.
"""

import argparse
import math
import pathlib
import time

import torch
from torch.nn import functional as F

from language_model import LanguageModel
from weights_file import read_weights, write_weights

HELD_OUT_SPAN_BYTES = 16384
HELD_OUT_EVERY = 40  # one span in this many is never trained on
SHORT_WINDOW = 1024
LONG_WINDOW = 4096
LONG_WINDOW_EVERY = 4  # one step in this many sees long windows
PROMPTS = ("And it came to pass in those days, that ",
           "CHAPTER III\nMr. Weston was a native of Highbury, and ",
           "\"My dear Jane,\" said Elizabeth, ")


def split_text(text: bytes) -> tuple[torch.Tensor, torch.Tensor]:
  """The bytes to train on, and the held-out spans as [span][HELD_OUT_SPAN_BYTES]."""
  spans = torch.frombuffer(bytearray(text), dtype=torch.uint8).split(HELD_OUT_SPAN_BYTES)
  middle = HELD_OUT_EVERY // 2
  held_out = [i for i in range(middle, len(spans) - 1, HELD_OUT_EVERY)]
  training = torch.cat([span for i, span in enumerate(spans) if i not in held_out])
  return training, torch.stack([spans[i] for i in held_out])


def sample_batch(training: torch.Tensor, windows: int, length: int) -> torch.Tensor:
  """Random windows of `length` + 1 bytes."""
  starts = torch.randint(len(training) - length, (windows, 1), device=training.device)
  return training[starts + torch.arange(length + 1, device=training.device)].long()


def next_byte_loss(model, tokens: torch.Tensor) -> torch.Tensor:
  logits = model(tokens[:, :-1])
  return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@torch.no_grad()
def held_out_bits(model: LanguageModel, held_out: torch.Tensor, length: int) -> tuple[float, float]:
  """Bits per held-out byte in windows of `length`: over whole windows, and over their last half."""
  model.eval()
  losses = []
  for windows in held_out.view(-1, length).split(max(1, 16384 // length)):
    tokens = windows.long()
    logits = model(tokens[:, :-1]).float()
    losses.append(F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").cpu())
  model.train()
  bits = torch.cat(losses) / math.log(2)
  return bits.mean().item(), bits[:, length // 2:].mean().item()


@torch.no_grad()
def generate(model: LanguageModel, prompt: str, count: int) -> str:
  """Greedy continuation, as kvtier-generate decodes."""
  model.eval()
  tokens = torch.tensor([list(prompt.encode())], device=model.final_norm.device)
  for _ in range(count):
    tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
  return bytes(tokens[0].tolist()).decode("ascii", "replace")


def make_optimizer(model: LanguageModel, rate: float) -> torch.optim.Optimizer:
  matrices = [p for p in model.parameters() if p.dim() == 2]
  norms = [p for p in model.parameters() if p.dim() == 1]
  groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
  return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=model.final_norm.is_cuda)


def learning_rate(peak: float, step: int, progress: float) -> float:
  """Linear warm-up over 200 steps, then a cosine to a hundredth of the peak."""
  decayed = peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
  return decayed * min(1.0, (step + 1) / 200)


def train(model: LanguageModel, training: torch.Tensor, held_out: torch.Tensor, arguments) -> None:
  """Runs until --steps or --seconds is used up, whichever comes first."""
  device = training.device.type
  autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
  loss_function = next_byte_loss
  if arguments.compile:
    loss_function = torch.compile(next_byte_loss, dynamic=False)
  optimizer = make_optimizer(model, arguments.rate)
  started = reported = time.monotonic()
  progress = 0.0
  step = 0
  while progress < 1.0:
    length = LONG_WINDOW if step % LONG_WINDOW_EVERY == 0 else SHORT_WINDOW
    windows = max(1, arguments.batch_bytes // length)
    for group in optimizer.param_groups:
      group["lr"] = learning_rate(arguments.rate, step, progress)
    with autocast:
      loss = loss_function(model, sample_batch(training, windows, length))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    elapsed = time.monotonic() - started
    progress = max(step / arguments.steps, elapsed / arguments.seconds)
    if step % 50 == 0 or progress >= 1.0:
      loss.item()  # waits for the device, so that `elapsed` is honest
    if time.monotonic() - reported > 15 or progress >= 1.0:
      reported = time.monotonic()
      with autocast:
        bits, _ = held_out_bits(model, held_out, SHORT_WINDOW)
      print(f"step {step} {elapsed:.0f} s: {step * arguments.batch_bytes / 1e6:.0f} MB seen, "
            f"training {loss.item() / math.log(2):.3f}, held out {bits:.3f} bits/byte", flush=True)


def report(model: LanguageModel, held_out: torch.Tensor, sample_bytes: int) -> None:
  """Prints what the written weights can do."""
  for length in (SHORT_WINDOW, LONG_WINDOW):
    whole, last_half = held_out_bits(model, held_out, length)
    print(f"held out, windows of {length}: {whole:.3f} bits/byte, last half {last_half:.3f}")
  for prompt in PROMPTS:
    print(f"--- {generate(model, prompt, sample_bytes)}", flush=True)


def parse_arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--text", type=pathlib.Path, required=True)
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--device", default="cuda")
  parser.add_argument("--steps", type=int, default=100000)
  parser.add_argument("--seconds", type=float, default=150)
  parser.add_argument("--batch-bytes", type=int, default=65536)
  parser.add_argument("--rate", type=float, default=3e-3)
  parser.add_argument("--dropout", type=float, default=0.2)
  parser.add_argument("--sample-bytes", type=int, default=300)
  parser.add_argument("--compile", action="store_true", help="use torch.compile")
  parser.add_argument("--seed", type=int, default=1)
  return parser.parse_args()


def main() -> None:
  arguments = parse_arguments()
  torch.manual_seed(arguments.seed)
  torch.set_float32_matmul_precision("high")
  training, held_out = (part.to(arguments.device)
                        for part in split_text(arguments.text.read_bytes()))
  model = LanguageModel(dropout=arguments.dropout).to(arguments.device)
  parameters = sum(p.numel() for p in model.parameters())
  print(f"{parameters} parameters, {len(training)} bytes to train on, {held_out.numel()} held out")
  train(model, training, held_out, arguments)
  size = write_weights(model, arguments.output)
  print(f"{arguments.output}: {size} bytes")
  report(read_weights(arguments.output).to(arguments.device), held_out, arguments.sample_bytes)


if __name__ == "__main__":
  main()
