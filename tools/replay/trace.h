// SPDX-License-Identifier: Apache-2.0
// Request traces: who asked for which prefix when.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

struct TraceRequest {
  int64_t arrival_ms = 0;  // since the start of the trace
  // Requests of one stream follow one another: a later one starts when the earlier has ended.
  uint32_t stream = 0;
  uint32_t input_tokens = 0;
  // One per block of the prompt, in order; the last block may be partly filled.
  std::vector<BlockHash> hashes;
};

struct Trace {
  uint32_t block_tokens = 0;
  // How many first tokens of each prompt are the definitions of tools, with which other sessions
  // with the same tools begin as well; 0: not known.
  uint32_t tool_tokens = 0;
  uint32_t streams = 0;
  std::vector<TraceRequest> requests;  // by arrival
};

enum class TraceFormat {
  kAuto,
  kMooncake,  // one JSON object a line: timestamp, input_length, hash_ids (512 tokens a block)
  kQwen,      // the same with chat_id, seconds with fractions, and 16 tokens a block
  kAgentic,   // one JSON document a session: block_size, requests[] with t, in, hash_ids
};

// Where block ids come from: equal ids are equal blocks only within one scope (the trace's name)
// and one seed. Another seed gives the same trace over blocks that were never stored.
struct TraceScope {
  std::string name;
  uint64_t seed = 0;
};

// The number of tokens that block `index` of the request covers: block_tokens or, at the end, less.
[[nodiscard]] uint32_t BlockTokens(const TraceRequest& request, uint32_t block_tokens,
                                   size_t index);

// Errors: kInvalidArgument "bad_trace" with the place of the fault.
[[nodiscard]] Result<Trace> ParseTrace(std::string_view text, TraceFormat format,
                                       const TraceScope& scope);

// Reads a file; its name without directory and extension is the scope. Errors: kNotFound, kIoError,
// and those of ParseTrace.
[[nodiscard]] Result<Trace> LoadTrace(const std::string& path, TraceFormat format, uint64_t seed);

// Plays the traces side by side, all starting at once. Errors: kInvalidArgument
// "mixed_block_tokens" when they differ in tokens per block.
[[nodiscard]] Result<Trace> MergeTraces(std::vector<Trace> traces);

}  // namespace kvtier
