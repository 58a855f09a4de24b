// SPDX-License-Identifier: Apache-2.0
// Trace events of the daemon as a document in Chrome's trace event format, which Perfetto opens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tools/support/json_view.h"

namespace kvtier {

// Each thing that took time becomes a pair of records, "b" and "e", with an id of its own; parts of
// it have the same id and lie within it. Each session is shown as a process, the cache itself as
// process 1. An end without a begin is left out and counted; a begin without an end yet ends now
// and says so.
class TraceDocument {
 public:
  // An event of a "kvtier.trace/1" reply; in the order in which they happened.
  void Add(JsonView event);
  // Takes one of the "sessions" of a portion.
  void NameSession(JsonView session);
  // Ends whatever is open at `now_us`. Call it last, once.
  [[nodiscard]] std::string Finish(int64_t now_us, int64_t wall_ms, uint64_t lost);

  [[nodiscard]] uint64_t spans() const { return spans_; }
  [[nodiscard]] uint64_t ends_without_begin() const { return ends_without_begin_; }

 private:
  // Kind, and the numbers that pair its begin with its end.
  using Key = std::tuple<std::string, uint64_t, uint64_t>;
  struct Open {
    uint64_t order = 0;
    int64_t us = 0;
    std::string name;
    std::string category;
    uint64_t process = 0;
    uint64_t track = 0;
    uint64_t blocks_asked = 0;
    boost::json::object arguments;
    std::vector<Key> parts;
  };
  // Records are sorted by the event that they come of; of one event, by `nested`.
  struct Record {
    uint64_t order = 0;
    int nested = 0;
    std::string json;
  };

  void Begin(JsonView event);
  void End(JsonView event);
  void Instant(JsonView event);
  // Puts the span's two records into the document, those of its open parts before.
  void Close(const Key& key, int64_t us, boost::json::object arguments);
  // Where the span is shown, and the span of which it is a part.
  void Place(JsonView event, const Key& key, Open* open);
  void AddRecord(int nested, uint64_t order, boost::json::object record);
  [[nodiscard]] std::string Metadata() const;

  std::map<Key, Open> open_;
  std::map<uint64_t, std::string> sessions_;  // names by id
  std::vector<Record> records_;
  uint64_t order_ = 0;
  uint64_t next_track_ = 1;
  uint64_t spans_ = 0;
  uint64_t ends_without_begin_ = 0;
};

}  // namespace kvtier
