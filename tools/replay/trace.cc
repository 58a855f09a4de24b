// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace kvtier {

uint32_t BlockTokens(const TraceRequest& request, uint32_t block_tokens, size_t index) {
  const uint64_t begin = uint64_t{block_tokens} * index;
  if (begin >= request.input_tokens) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(block_tokens, request.input_tokens - begin));
}

Result<Trace> LoadTrace(const std::string& path, TraceFormat format, uint64_t seed) {
  const std::filesystem::path file_path(path);
  std::error_code error;
  if (!std::filesystem::exists(file_path, error)) {
    return MakeError(ErrorCode::kNotFound, "no_such_trace", path);
  }
  std::ifstream file(file_path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || !text || std::filesystem::is_directory(file_path, error)) {
    return MakeError(ErrorCode::kIoError, "trace_unreadable", path);
  }
  auto trace = ParseTrace(text.view(), format, {file_path.stem().string(), seed});
  if (!trace) trace.error().context = fmt::format("{}: {}", path, trace.error().context);
  return trace;
}

Result<Trace> MergeTraces(std::vector<Trace> traces) {
  Trace merged;
  for (Trace& trace : traces) {
    if (merged.block_tokens != 0 && merged.block_tokens != trace.block_tokens) {
      return MakeError(ErrorCode::kInvalidArgument, "mixed_block_tokens",
                       fmt::format("{} and {} tokens a block in one replay", merged.block_tokens,
                                   trace.block_tokens));
    }
    merged.block_tokens = trace.block_tokens;
    for (TraceRequest& request : trace.requests) request.stream += merged.streams;
    merged.streams += trace.streams;
    std::move(trace.requests.begin(), trace.requests.end(), std::back_inserter(merged.requests));
  }
  std::ranges::stable_sort(merged.requests, {}, &TraceRequest::arrival_ms);
  return merged;
}

}  // namespace kvtier
