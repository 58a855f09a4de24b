// SPDX-License-Identifier: Apache-2.0
// A cold store in memory, which several caches may share, and which can be slow, gone or wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "tiers/cold/cold_store.h"

namespace kvtier {

// One thread. Answers are events of `loop`, which is borrowed and may change while none is due.
class FakeColdStore final : public ColdStore {
 public:
  struct Object {
    std::vector<std::byte> bytes;
    int64_t ttl_s = 0;
  };

  explicit FakeColdStore(EventQueue* loop = nullptr) : loop(loop) {}

  EventQueue* loop;
  std::map<std::string, Object> objects;
  bool available = true;
  bool refuses = false;  // every call fails at once, with this error:
  Error refusal = {ErrorCode::kUnavailable, "no_connection", ""};
  std::string refused;  // writes of names with this in them fail likewise
  bool holds = false;   // answers wait for Answer or TimeOut
  bool holds_deletions = false;
  uint64_t questions = 0;  // calls of Exists
  uint64_t gets = 0;
  uint64_t deletions = 0;  // calls of Delete
  std::string kept;        // an object that Delete refuses, and with it the call, with `refusal`
  std::vector<uint64_t> cursors;  // calls of DeleteSome

  [[nodiscard]] size_t held() const { return held_.size(); }
  // Whatever is held is answered, or ends because its time has passed.
  void Answer() { EndHeld(false); }
  void TimeOut() { EndHeld(true); }

  [[nodiscard]] bool Available() override { return available; }
  // As a store that looks no further than a prefix goes.
  void Exists(std::vector<std::string> names, ColdAsk ask, int64_t /*timeout_ms*/,
              ExistsDone done) override {
    ++questions;
    Reply<Result<std::vector<bool>>>(std::move(done), [this, names = std::move(names), ask] {
      std::vector<bool> present;
      for (const std::string& name : names) {
        const bool reached = ask == ColdAsk::kEach || present.empty() || present.back();
        present.push_back(reached && objects.contains(name));
      }
      return Result<std::vector<bool>>(std::move(present));
    });
  }
  void Get(std::string name, uint64_t bytes, int64_t /*timeout_ms*/, GetDone done) override {
    ++gets;
    Reply<Result<ColdBytes>>(std::move(done), [this, name = std::move(name), bytes] {
      const auto found = objects.find(name);
      if (found == objects.end()) {
        return Result<ColdBytes>(MakeError(ErrorCode::kNotFound, "cold_object_absent"));
      }
      if (found->second.bytes.size() != bytes) {
        return Result<ColdBytes>(MakeError(ErrorCode::kCorrupt, "cold_object_size"));
      }
      return Result<ColdBytes>(std::make_shared<const ColdObject>(found->second.bytes.begin(),
                                                                  found->second.bytes.end()));
    });
  }
  // Leaves an object that it may leave.
  void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t /*timeout_ms*/,
           Done done) override {
    if (!refused.empty() && name.find(refused) != std::string::npos)
      return loop->Post([done, error = refusal] { done(tl::unexpected(error)); });
    Reply<Status>(std::move(done), [this, name = std::move(name), bytes, how] {
      if (how.replaces || !objects.contains(name))
        objects[name] = {{bytes->begin(), bytes->end()}, how.ttl_s};
      return Status();
    });
  }
  void Delete(std::vector<std::string> names, int64_t /*timeout_ms*/, Done done) override {
    ++deletions;
    if (std::ranges::find(names, kept) != names.end()) {
      return loop->Post([done, error = refusal] { done(tl::unexpected(error)); });
    }
    const bool held = std::exchange(holds, holds || holds_deletions);
    Reply<Status>(std::move(done), [this, names = std::move(names)] {
      for (const std::string& name : names) objects.erase(name);
      return Status();
    });
    holds = held;
  }

  // Two at a time.
  void DeleteSome(std::string prefix, uint64_t cursor, int64_t /*timeout_ms*/,
                  DeletedDone done) override {
    cursors.push_back(cursor);
    Reply<Result<uint64_t>>(std::move(done), [this, prefix = std::move(prefix), cursor] {
      for (int left = 2; left > 0; --left) {
        const auto found = objects.lower_bound(prefix);
        if (found == objects.end() || !found->first.starts_with(prefix)) {
          return Result<uint64_t>(uint64_t{0});
        }
        objects.erase(found);
      }
      return Result<uint64_t>(cursor + 1);
    });
  }

 private:
  template <typename Answer>
  void Reply(std::function<void(Answer)> done, std::function<Answer()> work) {
    if (refuses) {
      loop->Post([done, error = refusal] { done(tl::unexpected(error)); });
    } else if (holds) {
      held_.push_back([done, work](bool late) {
        if (late) {
          done(MakeError(ErrorCode::kTimeout, "cold_store_late"));
        } else {
          done(work());
        }
      });
    } else {
      loop->Post([done, work] { done(work()); });
    }
  }
  void EndHeld(bool late) {
    for (auto& end : std::exchange(held_, {})) loop->Post([end, late] { end(late); });
  }

  std::deque<std::function<void(bool)>> held_;
};

}  // namespace kvtier
