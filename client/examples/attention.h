// SPDX-License-Identifier: Apache-2.0
// Causal attention of one token over a sequence's keys and values, read where they are.
#pragma once

#include <cstddef>
#include <span>

#include "client/examples/kv_view.h"

namespace kvtier::generate {

// One query head: mixes the values of positions 0..position of `layer` and `kv_head` into `output`,
// weighted by softmax(query * key / sqrt(kHeadDim)). `query` and `output` are kHeadDim floats;
// `scores` is scratch for position + 1 floats and kLanes more.
//
// Every sum goes over the positions in their order, so the result depends on the bytes of the
// sequence and on nothing else: not on where its blocks are, nor on when they were computed.
void Attend(const KvView& kv, size_t layer, size_t kv_head, size_t position, const float* query,
            std::span<float> scores, float* output);

}  // namespace kvtier::generate
