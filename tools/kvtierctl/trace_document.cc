// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/trace_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/command.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr uint64_t kCacheProcess = 1;
// Sessions are numbered from 1 on.
constexpr uint64_t ProcessOf(uint64_t session) { return kCacheProcess + session; }

// Orders the records of one event: those of a request begin before and end after those of its
// parts.
constexpr int kWhole = 1;
constexpr int kPart = 0;

// A double would not hold every number that a client may choose.
uint64_t NumberIn(JsonView event, std::string_view member) {
  const json::value* value = event[member].value();
  if (value == nullptr || !value->is_number()) return 0;
  json::error_code error;
  const auto number = value->to_number<uint64_t>(error);
  return error ? 0 : number;
}

struct KindRow {
  std::string_view kind;
  std::string_view name;
  std::string_view category;
  std::string_view whole;  // of which it is a part
};
constexpr std::array<KindRow, 13> kKinds = {{
    {"session", "session", "session", ""},
    {"request", "request", "request", ""},
    {"wait", "wait for room", "request", "request"},
    {"load", "load", "load", ""},
    {"block_load", "block", "block", ""},
    {"disk_read", "disk read", "block", "block_load"},
    {"check", "compare checksum", "block", "block_load"},
    {"copy_up", "copy to pool", "block", "block_load"},
    {"offload", "copy to host", "offload", ""},
    {"seal", "make checksum", "offload", ""},
    {"disk_write", "disk write", "disk", ""},
    {"verify_read", "read back", "disk", ""},
    {"index_commit", "index commit", "index", ""},
}};

const KindRow* FindKind(std::string_view kind) {
  const auto row = std::ranges::find(kKinds, kind, &KindRow::kind);
  return row == kKinds.end() ? nullptr : row;
}

std::string NameOf(const KindRow& kind, JsonView event) {
  if (kind.kind == "request") return event["message"].Text();
  if (kind.kind == "block_load") return "block from " + event["tier"].Text();
  return std::string(kind.name);
}

// The arguments that a begin and an end have in common.
json::object ArgumentsOf(JsonView event) {
  json::object arguments;
  for (const char* member : {"session", "request", "bytes"}) {
    if (event[member].present()) arguments[member] = NumberIn(event, member);
  }
  for (const char* member : {"hash", "miss"}) {
    if (event[member].present()) arguments[member] = event[member].Text();
  }
  if (NumberIn(event, "failed") != 0) arguments["failed"] = true;
  return arguments;
}

json::object BeginArguments(JsonView event, std::string_view kind) {
  json::object arguments = ArgumentsOf(event);
  if (kind == "request" || kind == "load") arguments["blocks"] = NumberIn(event, "n0");
  if (kind == "request") arguments["new_blocks"] = NumberIn(event, "n1");
  if (kind == "load") arguments["load"] = NumberIn(event, "id");
  if (kind == "index_commit") {
    arguments["records"] = NumberIn(event, "n0");
    arguments["deletions"] = NumberIn(event, "n1");
  }
  return arguments;
}

json::object EndArguments(JsonView event, std::string_view kind, uint64_t blocks_asked) {
  json::object arguments = ArgumentsOf(event);
  if (kind == "load") arguments["ready"] = NumberIn(event, "n0");
  if (kind != "request" || event["message"].Text() != "acquire") return arguments;
  uint64_t hits = 0;
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    const uint64_t blocks = NumberIn(event, fmt::format("n{}", tier));
    arguments[fmt::format("{}_hits", kTierNames[tier])] = blocks;
    hits += blocks;
  }
  arguments["missed"] = blocks_asked - std::min(blocks_asked, hits);
  if (event["id"].present()) arguments["load"] = NumberIn(event, "id");
  return arguments;
}

// Pairs are made within a session and request, or a number of the cache's.
std::tuple<std::string, uint64_t, uint64_t> KeyOf(JsonView event) {
  std::string kind = event["kind"].Text();
  if (kind == "session" || kind == "request" || kind == "wait") {
    const uint64_t session = NumberIn(event, "session");
    return {std::move(kind), session, NumberIn(event, "request")};
  }
  return {std::move(kind), NumberIn(event, "id"), 0};
}

}  // namespace

void TraceDocument::Add(JsonView event) {
  ++order_;
  const std::string phase = event["ph"].Text();
  if (phase == "b") return Begin(event);
  if (phase == "e") return End(event);
  if (phase == "i") return Instant(event);
}

void TraceDocument::NameSession(JsonView session) {
  sessions_[NumberIn(session, "id")] =
      fmt::format("session {}: {} {} (pid {})", NumberIn(session, "id"), session["tenant"].Text(),
                  session["client"].Text(), NumberIn(session, "pid"));
}

void TraceDocument::Place(JsonView event, const Key& key, Open* open) {
  const KindRow& kind = *FindKind(std::get<0>(key));
  Key whole{std::string(kind.whole), std::get<1>(key), std::get<2>(key)};
  const auto found = open_.find(whole);
  if (found != open_.end()) {
    found->second.parts.push_back(key);
    open->process = found->second.process;
    open->track = found->second.track;
    // A part is done for whom the whole is done for.
    for (const char* member : {"session", "request"}) {
      const json::value* value = found->second.arguments.if_contains(member);
      if (value != nullptr) open->arguments[member] = *value;
    }
    return;
  }
  const uint64_t session = NumberIn(event, "session");
  open->process = session == 0 ? kCacheProcess : ProcessOf(session);
  open->track = next_track_++;
  if (session == 0) return;
  sessions_.try_emplace(session, fmt::format("session {}", session));
  // Work that a session waits for ends with it, but blocks on their way up still arrive.
  const auto owner = open_.find(Key{"session", session, 0});
  if (owner != open_.end() && kind.kind != "block_load") owner->second.parts.push_back(key);
}

void TraceDocument::Begin(JsonView event) {
  const Key key = KeyOf(event);
  const KindRow* kind = FindKind(std::get<0>(key));
  if (kind == nullptr) return;
  const auto us = static_cast<int64_t>(NumberIn(event, "us"));
  // A client may use the number of a request again while it is under way.
  if (open_.contains(key)) Close(key, us, {{"unfinished", true}});
  Open open{.order = order_,
            .us = us,
            .name = NameOf(*kind, event),
            .category = std::string(kind->category),
            .blocks_asked = NumberIn(event, "n0"),
            .arguments = BeginArguments(event, kind->kind)};
  Place(event, key, &open);
  open_.emplace(key, std::move(open));
}

void TraceDocument::End(JsonView event) {
  const Key key = KeyOf(event);
  const auto found = open_.find(key);
  if (found == open_.end()) {
    ++ends_without_begin_;
    return;
  }
  Close(key, static_cast<int64_t>(NumberIn(event, "us")),
        EndArguments(event, std::get<0>(key), found->second.blocks_asked));
}

void TraceDocument::Close(const Key& key, int64_t us, json::object arguments) {
  const auto node = open_.extract(key);
  if (node.empty()) return;
  const Open& open = node.mapped();
  for (const Key& part : open.parts) Close(part, us, {{"unfinished", true}});
  const bool whole = FindKind(std::get<0>(key))->whole.empty();
  const std::string id = fmt::format("{:#x}", open.track);
  const auto record = [&](const char* phase, int64_t ts, const json::object& args) {
    return json::object{
        {"ph", phase}, {"cat", open.category}, {"name", open.name},   {"id", id},
        {"ts", ts},    {"pid", open.process},  {"tid", open.process}, {"args", args}};
  };
  AddRecord(kWhole, open.order, record("b", open.us, open.arguments));
  AddRecord(whole ? kWhole : kPart, order_, record("e", us, arguments));
  ++spans_;
}

void TraceDocument::Instant(JsonView event) {
  const std::string tier = event["tier"].Text();
  const auto row = std::ranges::find(kTierNames, tier) - kTierNames.begin() + 1;
  json::object arguments = ArgumentsOf(event);
  arguments["reason"] = event["reason"].Text();
  AddRecord(kWhole, order_,
            {{"ph", "i"},
             {"s", "t"},
             {"cat", "evict"},
             {"name", event["kind"].Text() + ": " + event["reason"].Text()},
             {"ts", NumberIn(event, "us")},
             {"pid", kCacheProcess},
             {"tid", row},
             {"args", std::move(arguments)}});
}

void TraceDocument::AddRecord(int nested, uint64_t order, json::object record) {
  records_.push_back({order, nested, json::serialize(record)});
}

std::string TraceDocument::Metadata() const {
  std::string text;
  const auto add = [&text](const char* what, uint64_t process, uint64_t thread,
                           const json::object& arguments) {
    text +=
        (text.empty() ? "" : ",\n") +
        json::serialize(json::object{
            {"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", arguments}});
  };
  add("process_name", kCacheProcess, 0, {{"name", "kvtierd: cache"}});
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    add("thread_name", kCacheProcess, tier + 1,
        {{"name", fmt::format("evictions from {}", kTierNames[tier])}});
  }
  for (const auto& [session, name] : sessions_) {
    add("process_name", ProcessOf(session), 0, {{"name", name}});
  }
  return text;
}

std::string TraceDocument::Finish(int64_t now_us, int64_t wall_ms, uint64_t lost) {
  ++order_;
  while (!open_.empty()) {
    // The whole closes its parts.
    const auto whole = std::ranges::find_if(
        open_, [](const auto& entry) { return FindKind(std::get<0>(entry.first))->whole.empty(); });
    const Key key = whole == open_.end() ? open_.begin()->first : whole->first;
    Close(key, now_us, {{"unfinished", true}});
  }
  std::ranges::stable_sort(
      records_, {}, [](const Record& record) { return std::pair(record.order, record.nested); });
  std::string text = fmt::format(
      R"({{"schema":"kvtier.trace_dump/1","displayTimeUnit":"ms",)"
      R"("otherData":{{"now_us":{},"wall_ms":{},"lost_events":{},"ends_without_begin":{}}},)"
      "\n\"traceEvents\":[\n",
      now_us, wall_ms, lost, ends_without_begin_);
  text += Metadata();
  for (const Record& record : records_) text += ",\n" + record.json;
  return text + "\n]}\n";
}

}  // namespace kvtier
