// SPDX-License-Identifier: Apache-2.0
// The model's parameters, and the file they come from (client/examples/model/MODEL.md describes its
// bytes).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "client/examples/model_shape.h"
#include "client/examples/tensor.h"

namespace kvtier::generate {

// A whole file of bounded size. Errors: kNotFound, kIoError; kLimitExceeded "file_too_large".
[[nodiscard]] Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

struct LayerWeights {
  std::vector<float> attention_norm;
  PackedMatrix query;
  PackedMatrix key;
  PackedMatrix value;
  PackedMatrix attention_output;
  std::vector<float> feed_forward_norm;
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
};

struct Weights {
  ModelShape shape;
  Digest256 digest;              // of the file: the identity of the model
  std::vector<float> embedding;  // [vocabulary][width]
  PackedMatrix logits;           // the same values: input and output embeddings are tied
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
};

// Takes nothing on trust: bytes that are not exactly a file of weights are an error.
// Errors: kCorrupt "weights_magic", "weights_digest", "weights_length"; kUnsupported
// "weights_version", "weights_shape".
[[nodiscard]] Result<Weights> ParseWeights(std::span<const std::byte> file);

// Errors: as ParseWeights and ReadFile.
[[nodiscard]] Result<Weights> LoadWeights(const std::string& path);

}  // namespace kvtier::generate
