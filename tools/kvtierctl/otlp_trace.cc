// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/otlp_trace.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>
#include <utility>
#include <vector>

#include "tools/support/json_view.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr int kInternal = 1;       // SpanKind
constexpr int kStatusOfError = 2;  // StatusCode

json::object Attribute(std::string_view key, const json::value& value) {
  json::object typed;
  if (value.is_bool()) {
    typed["boolValue"] = value;
  } else if (value.is_number()) {
    // 64-bit numbers are texts in the JSON of Protocol Buffers.
    typed["intValue"] = json::serialize(value);
  } else {
    typed["stringValue"] = value;
  }
  return {{"key", key}, {"value", std::move(typed)}};
}

// Pairs the records of a document, which come in the order of time and nest within an id.
class SpanMaker {
 public:
  SpanMaker(uint64_t seed, int64_t unix_minus_monotonic_us)
      : seed_(seed | 1), offset_us_(unix_minus_monotonic_us) {}

  void Add(JsonView record) {
    const std::string phase = record["ph"].Text();
    std::vector<json::object>& open = open_[record["id"].Text()];
    if (phase == "b") {
      open.push_back(Begun(record, open));
    } else if (phase == "e" && !open.empty()) {
      json::object span = std::move(open.back());
      open.pop_back();
      span["endTimeUnixNano"] = UnixNs(record);
      AddArguments(record["args"], &span);
      spans_.push_back(std::move(span));
    }
  }

  [[nodiscard]] json::array Take() && { return std::move(spans_); }

 private:
  [[nodiscard]] std::string UnixNs(JsonView record) const {
    return std::to_string((static_cast<int64_t>(record["ts"].Count()) + offset_us_) * 1000);
  }

  // Loads go on after their request has been answered, and belong to its trace by its number. Work
  // that no request waits for is a trace by itself.
  [[nodiscard]] std::string TraceOf(JsonView record) const {
    const JsonView arguments = record["args"];
    const uint64_t session = arguments["session"].Count();
    if (session == 0) return fmt::format("{:016x}{:0>16}", ~seed_, record["id"].Text().substr(2));
    return fmt::format("{:016x}{:08x}{:08x}", seed_, static_cast<uint32_t>(session),
                       static_cast<uint32_t>(arguments["request"].Count()));
  }

  json::object Begun(JsonView record, const std::vector<json::object>& around) {
    json::object span{
        {"traceId",
         around.empty() ? TraceOf(record) : std::string(around.back().at("traceId").as_string())},
        {"spanId", fmt::format("{:016x}", seed_ + ++made_)},
        {"name", record["name"].Text()},
        {"kind", kInternal},
        {"startTimeUnixNano", UnixNs(record)}};
    if (!around.empty()) span["parentSpanId"] = around.back().at("spanId");
    span["attributes"] = json::array{Attribute("kvtier.category", record["cat"].Text().c_str())};
    AddArguments(record["args"], &span);
    return span;
  }

  static void AddArguments(JsonView arguments, json::object* span) {
    const json::object* const members = arguments.object();
    if (members == nullptr) return;
    for (const auto& [name, value] : *members) {
      if (name == "failed") (*span)["status"] = json::object{{"code", kStatusOfError}};
      (*span)["attributes"].as_array().push_back(Attribute("kvtier." + std::string(name), value));
    }
  }

  const uint64_t seed_;
  const int64_t offset_us_;
  uint64_t made_ = 0;
  std::map<std::string, std::vector<json::object>> open_;  // by the record's id
  json::array spans_;
};

}  // namespace

Result<std::string> ToOtlp(std::string_view document, uint64_t seed) {
  json::error_code error;
  const json::value parsed = json::parse(document, error);
  const JsonView trace(error ? nullptr : &parsed);
  if (!trace["traceEvents"].present()) {
    return MakeError(ErrorCode::kCorrupt, "bad_trace", "no trace events");
  }
  const JsonView clocks = trace["otherData"];
  SpanMaker maker(seed, static_cast<int64_t>(clocks["wall_ms"].Count()) * 1000 -
                            static_cast<int64_t>(clocks["now_us"].Count()));
  trace["traceEvents"].ForEach([&](JsonView record) { maker.Add(record); });
  const json::object resource{{"attributes", json::array{Attribute("service.name", "kvtierd")}}};
  json::object scope{{"scope", {{"name", "kvtier"}}}, {"spans", std::move(maker).Take()}};
  return json::serialize(json::object{
             {"resourceSpans",
              json::array{json::object{{"resource", resource},
                                       {"scopeSpans", json::array{std::move(scope)}}}}}}) +
         "\n";
}

}  // namespace kvtier
