// SPDX-License-Identifier: Apache-2.0
// A cold store's rates through the daemon's own code for it: `tools/bench/cold.sh` compares them
// with the store's own benchmark.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "daemon/cold/loaded_store.h"
#include "daemon/runtime/event_loop.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The processors' time that this process has used.
double CpuSeconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

constexpr int64_t kTimeoutMs = 60'000;
constexpr int64_t kTtlS = 3600;
// Objects that are read, many times, and how many a question asks for beside reads, or alone.
constexpr size_t kObjects = 128;
constexpr size_t kAsked = 64;
constexpr size_t kLookedUp = 100;
// The bytes written before names are used again, so that a store in memory does not fill up.
constexpr size_t kWrittenBytes = size_t{1} << 30;

struct Measure {
  bool reads = false;
  bool asks = false;  // whether objects are there, before they are read
  size_t bytes = 0;
  size_t depth = 0;
  double seconds = 0;
  int names = 0;  // of the objects that are read
};

// `run` tells objects of one process from another's, since a store may leave one that it has.
std::string NameOf(uint64_t number, int run) {
  return fmt::format("kvtier/1/bench/model-1/{:02x}{:014x}{:048x}", number % 64, run, number);
}

// Keeps `depth` calls under way until the time is over, and waits for all.
class Run {
 public:
  Run(ColdStore* store, EventLoop* loop, const Measure& measure)
      : store_(*store),
        loop_(*loop),
        measure_(measure),
        object_(std::make_shared<ColdObject>(measure.bytes, std::byte{7})) {}

  // The first `count` objects.
  void Fill(size_t count) {
    end_ = SteadyClock::time_point::max();
    limit_ = count;
    Play([this] { Put(); });
  }
  // MB/s, as the stores' benchmarks count (1 MB = 1 MiB); nothing if a call failed.
  [[nodiscard]] double Rate() {
    const auto begin = SteadyClock::now();
    const double cpu_begin = CpuSeconds();
    end_ = begin + std::chrono::duration_cast<SteadyClock::duration>(
                       std::chrono::duration<double>(measure_.seconds));
    limit_ = UINT64_MAX;
    begun_ = ended_ = 0;
    Play([this] { measure_.reads ? Get() : Put(); });
    const std::chrono::duration<double> elapsed = SteadyClock::now() - begin;
    const double moved = static_cast<double>(ended_ * measure_.bytes) / static_cast<double>(kMiB);
    cpu_rate_ = moved / (CpuSeconds() - cpu_begin);
    return moved / elapsed.count();
  }
  // The median time of a prefix's question, in ms, for objects that an earlier run has read.
  [[nodiscard]] double LookupMs() {
    std::vector<std::string> names;
    for (size_t i = 0; i < kLookedUp; ++i) names.push_back(NameOf(i, measure_.names));
    std::vector<double> times_ms;
    const auto begin = SteadyClock::now();
    const std::chrono::duration<double> most(measure_.seconds);
    do {
      const auto asked = SteadyClock::now();
      bool is_answered = false;
      store_.Exists(names, ColdAsk::kPrefix, kTimeoutMs,
                    [&](const Result<std::vector<bool>>& answer) {
                      is_answered = true;
                      if (!answer || std::ranges::find(*answer, false) != answer->end()) ++failed_;
                    });
      loop_.RunUntil([&] { return is_answered; });
      const std::chrono::duration<double, std::milli> took = SteadyClock::now() - asked;
      times_ms.push_back(took.count());
    } while (SteadyClock::now() - begin < most);
    std::ranges::nth_element(times_ms, times_ms.begin() + static_cast<long>(times_ms.size() / 2));
    return times_ms[times_ms.size() / 2];
  }
  // As the last rate, but for each second of a processor's time that this process used: it says
  // something where others use the machine, too.
  [[nodiscard]] double cpu_rate() const { return cpu_rate_; }
  [[nodiscard]] uint64_t failed() const { return failed_; }

 private:
  void Play(std::function<void()> call) {
    call_ = std::move(call);
    begun_ = ended_ = 0;
    for (size_t i = 0; i < measure_.depth; ++i) Next();
    loop_.RunUntil([this] { return ended_ == begun_; });
  }
  void Next() {
    if (begun_ == limit_ || SteadyClock::now() >= end_) return;
    ++begun_;
    call_();
  }
  void OnEnded(bool good) {
    ++ended_;
    if (!good) ++failed_;
    Next();
  }
  void Put() {
    const size_t objects = std::max(kObjects, kWrittenBytes / measure_.bytes);
    const int run = measure_.reads ? measure_.names : ::getpid();
    const ColdPut how{.ttl_s = kTtlS, .replaces = false};
    store_.Put(NameOf(next_written_++ % objects, run), object_, how, kTimeoutMs,
               [this](const Status& status) { OnEnded(status.has_value()); });
  }
  // With questions it reads as the cache does, which asks for many objects with one.
  void Get() {
    if (!measure_.asks) ++found_;
    if (found_ < kAsked && measure_.asks) Ask();
    if (found_ == 0) {
      ++parked_;
      return;
    }
    --found_;
    store_.Get(NameOf(next_read_++ % kObjects, measure_.names), measure_.bytes, kTimeoutMs,
               [this](const Result<ColdBytes>& got) { OnEnded(got.has_value()); });
  }
  void Ask() {
    if (asking_) return;
    asking_ = true;
    std::vector<std::string> names;
    for (size_t i = 0; i < kAsked; ++i)
      names.push_back(NameOf(next_asked_++ % kObjects, measure_.names));
    store_.Exists(std::move(names), ColdAsk::kPrefix, kTimeoutMs,
                  [this](const Result<std::vector<bool>>& answer) {
                    asking_ = false;
                    found_ += kAsked;
                    if (!answer) ++failed_;
                    for (size_t parked = std::exchange(parked_, 0); parked > 0; --parked) Get();
                  });
  }

  ColdStore& store_;
  EventLoop& loop_;
  const Measure measure_;
  const ColdBytes object_;
  std::function<void()> call_;
  SteadyClock::time_point end_;
  double cpu_rate_ = 0;
  uint64_t limit_ = 0, begun_ = 0, ended_ = 0, failed_ = 0;
  // Objects that were found and not yet read, and reads that wait for more of them.
  size_t found_ = 0, parked_ = 0;
  uint64_t next_read_ = 0, next_asked_ = 0, next_written_ = 0;
  bool asking_ = false;
};

int Main(std::span<char*> arguments) {
  if (arguments.size() != 7 && arguments.size() != 8) {
    fmt::print(stderr,
               "usage: {} LIBRARY ENDPOINT put|get|ask|lookup BYTES DEPTH SECONDS [NAMES]\n",
               arguments[0]);
    return 2;
  }
  const std::string verb = arguments[3];
  const Measure measure{.reads = verb != "put",
                        .asks = verb == "ask",
                        .bytes = std::strtoull(arguments[4], nullptr, 10),
                        .depth = std::strtoull(arguments[5], nullptr, 10),
                        .seconds = std::strtod(arguments[6], nullptr),
                        .names = arguments.size() == 8 ? std::atoi(arguments[7]) : 0};
  EventLoop loop;
  auto store = LoadedStore::Open({.library = arguments[1],
                                  .endpoint = arguments[2],
                                  .max_bytes_in_flight = [] { return kGiB; }},
                                 &loop);
  if (!store) {
    fmt::print(stderr, "{}\n", store.error().ToString());
    return 1;
  }
  Run run(store->get(), &loop, measure);
  if (verb != "lookup") run.Fill(kObjects);
  const double result = verb == "lookup" ? run.LookupMs() : run.Rate();
  if (run.failed() > 0) {
    fmt::print(stderr, "{} calls failed\n", run.failed());
    return 1;
  }
  fmt::print("{:.1f} {:.1f}\n", result, run.cpu_rate());
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main({argv, static_cast<size_t>(argc)}); }
