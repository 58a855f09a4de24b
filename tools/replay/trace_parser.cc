// SPDX-License-Identifier: Apache-2.0
// Reads the three public trace formats. Boost.JSON throws; its exceptions end in this file.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <stdexcept>

#include "base/bytes.h"
#include "base/digest.h"
#include "tools/replay/trace.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr uint32_t kMooncakeBlockTokens = 512;
constexpr uint32_t kQwenBlockTokens = 16;
constexpr uint64_t kMaxBlockTokens = 4096;
constexpr uint64_t kMaxInputTokens = 1u << 30;

tl::unexpected<Error> BadTrace(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_trace", std::move(context));
}

std::string Shortened(std::string text) {
  constexpr size_t kMostBytes = 60;
  if (text.size() <= kMostBytes) return text;
  return text.substr(0, kMostBytes) + "...";
}

BlockHash HashOfId(const TraceScope& scope, uint64_t id) {
  ByteWriter writer;
  writer.WriteString("kvtier.replay");
  writer.WriteString(scope.name);
  writer.Write(scope.seed);
  writer.Write(id);
  return Sha256(writer.data());
}

// Leaves out the place in the library's source that what() tells besides.
std::string Explain(const std::exception& error) {
  const auto* coded = dynamic_cast<const boost::system::system_error*>(&error);
  return coded != nullptr ? coded->code().message() : error.what();
}

// The result of `read` for the field's value. Throws an exception that names the field if it is
// absent, or if `read` throws: the value is out of range or of another type.
template <typename Read>
auto ReadField(const json::object& object, std::string_view field, Read read) {
  const json::value* const value = object.if_contains(field);
  if (value == nullptr) throw std::invalid_argument(fmt::format("\"{}\" is missing", field));
  try {
    return read(*value);
  } catch (const std::exception& error) {
    throw std::invalid_argument(
        fmt::format("\"{}\" is {}: {}", field, Shortened(json::serialize(*value)), Explain(error)));
  }
}

uint64_t NonNegative(const json::object& object, std::string_view field, uint64_t max) {
  return ReadField(object, field, [max](const json::value& value) {
    const auto number = value.to_number<uint64_t>();
    if (number > max) throw std::out_of_range(fmt::format("at most {}", max));
    return number;
  });
}

int64_t MillisecondsFromSeconds(const json::object& object, std::string_view field) {
  return ReadField(object, field, [](const json::value& value) {
    const auto seconds = value.to_number<double>();
    if (!(seconds >= 0 && seconds < 1e9)) throw std::out_of_range("no time in seconds");
    return std::llround(seconds * 1000);
  });
}

std::vector<BlockHash> Hashes(const json::object& object, const TraceScope& scope) {
  return ReadField(object, "hash_ids", [&scope](const json::value& value) {
    std::vector<BlockHash> hashes;
    for (const json::value& id : value.as_array()) {
      hashes.push_back(HashOfId(scope, id.to_number<uint64_t>()));
    }
    return hashes;
  });
}

TraceRequest RequestOfLine(const json::object& object, TraceFormat format,
                           const TraceScope& scope) {
  TraceRequest request;
  request.arrival_ms = format == TraceFormat::kQwen
                           ? MillisecondsFromSeconds(object, "timestamp")
                           : static_cast<int64_t>(NonNegative(object, "timestamp", INT64_MAX));
  request.input_tokens =
      static_cast<uint32_t>(NonNegative(object, "input_length", kMaxInputTokens));
  request.hashes = Hashes(object, scope);
  return request;
}

// A line has the ids of all blocks of its prompt.
void CheckIdsOfLine(const TraceRequest& request, uint32_t block_tokens) {
  const uint64_t full = request.input_tokens / block_tokens;
  if (request.hashes.size() >= full) return;
  throw std::invalid_argument(
      fmt::format("\"hash_ids\" has {} blocks of {} tokens for the {} of "
                  "\"input_length\"",
                  request.hashes.size(), block_tokens, request.input_tokens));
}

Result<Trace> ParseLines(std::string_view text, TraceFormat format, const TraceScope& scope) {
  Trace trace;
  trace.block_tokens = format == TraceFormat::kQwen ? kQwenBlockTokens : kMooncakeBlockTokens;
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      trace.requests.push_back(RequestOfLine(json::parse(line).as_object(), format, scope));
      CheckIdsOfLine(trace.requests.back(), trace.block_tokens);
    } catch (const std::exception& error) {
      return BadTrace(fmt::format("line {}: {}", line_number, Explain(error)));
    }
    // Nothing says which requests belong together: each may run beside any other.
    trace.requests.back().stream = trace.streams++;
  }
  return trace;
}

// Appends the requests of a session and, as streams of their own, those of its sub-agents.
void AppendAgenticRequests(const json::array& requests, int64_t start_ms, const TraceScope& scope,
                           int depth, Trace* trace) {
  constexpr int kMaxDepth = 8;
  if (depth > kMaxDepth) throw std::out_of_range("sub-agents nested too deep");
  const uint32_t stream = trace->streams++;
  for (const json::value& value : requests) {
    const json::object& object = value.as_object();
    const int64_t arrival_ms = start_ms + MillisecondsFromSeconds(object, "t");
    if (object.contains("requests")) {
      AppendAgenticRequests(object.at("requests").as_array(), arrival_ms, scope, depth + 1, trace);
      continue;
    }
    TraceRequest request;
    request.arrival_ms = arrival_ms;
    request.stream = stream;
    request.input_tokens = static_cast<uint32_t>(NonNegative(object, "in", kMaxInputTokens));
    request.hashes = Hashes(object, scope);
    trace->requests.push_back(std::move(request));
  }
}

Result<Trace> ParseAgentic(std::string_view text, const TraceScope& scope) {
  Trace trace;
  try {
    const json::value document = json::parse(text);
    const json::object& session = document.as_object();
    trace.block_tokens = static_cast<uint32_t>(NonNegative(session, "block_size", kMaxBlockTokens));
    if (trace.block_tokens == 0) return BadTrace("\"block_size\" is 0");
    if (session.contains("tool_tokens")) {
      trace.tool_tokens =
          static_cast<uint32_t>(NonNegative(session, "tool_tokens", kMaxInputTokens));
    }
    AppendAgenticRequests(session.at("requests").as_array(), 0, scope, 0, &trace);
  } catch (const std::exception& error) {
    return BadTrace(Explain(error));
  }
  return trace;
}

// A first line that is a whole object with a timestamp can only be of a line-wise format.
TraceFormat Detect(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  json::error_code error;
  const json::value value = json::parse(line, error);
  if (error || !value.is_object() || !value.get_object().contains("timestamp")) {
    return TraceFormat::kAgentic;
  }
  return value.get_object().contains("chat_id") ? TraceFormat::kQwen : TraceFormat::kMooncake;
}

// Blocks beyond the prompt's tokens would hold nothing; tokens beyond the blocks (the tail of the
// agentic traces) are not cached.
Status CheckRequests(const Trace& trace) {
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    if (request.hashes.empty()) continue;
    if (BlockTokens(request, trace.block_tokens, request.hashes.size() - 1) == 0) {
      return BadTrace(fmt::format("request {}: {} blocks for {} tokens", i, request.hashes.size(),
                                  request.input_tokens));
    }
  }
  return {};
}

}  // namespace

Result<Trace> ParseTrace(std::string_view text, TraceFormat format, const TraceScope& scope) {
  if (format == TraceFormat::kAuto) format = Detect(text);
  KVT_ASSIGN_OR_RETURN(Trace trace, format == TraceFormat::kAgentic
                                        ? ParseAgentic(text, scope)
                                        : ParseLines(text, format, scope));
  if (trace.requests.empty()) return BadTrace("no requests");
  KVT_RETURN_IF_ERROR(CheckRequests(trace));
  std::ranges::stable_sort(trace.requests, {}, &TraceRequest::arrival_ms);
  return trace;
}

}  // namespace kvtier
