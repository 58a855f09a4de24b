// SPDX-License-Identifier: Apache-2.0
// kvtier-policy-replay: plays traces against the cache in memory, once for each order of eviction
// and size, and prints what share of the tokens asked for was served, and what share of the time to
// compute all prompts that spared, with the times of loads taken off.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/fakes/derived_bytes.h"
#include "tests/fakes/seeded_random.h"
#include "tests/model/access_patterns.h"
#include "tests/model/offline_replay.h"

namespace kvtier {
namespace {

constexpr std::array<std::pair<PoolEviction, std::string_view>, 3> kOrders = {
    {{PoolEviction::kLru, "lru"},
     {PoolEviction::kClsAlways, "cls always"},
     {PoolEviction::kCls, "cls"}}};

struct Arguments {
  std::vector<std::string> traces;
  std::vector<std::string> patterns;
  std::vector<uint64_t> pool_tokens;
  std::vector<double> pool_percents;
  double host_share = 4;
  double disk_share = 0;
  double closed_percent = 0;
  uint32_t copies = 1;
  double starts_per_hour = 30;
  uint32_t tokens = 512;
  uint64_t seed = 1;
  bool share_tools = false;
};

// Several blocks as one, known by the last of them; what does not fill one is left out, as the
// simulation does with which the figures are compared.
void JoinBlocks(Trace* trace, uint32_t tokens) {
  const uint32_t joined = tokens / trace->block_tokens;
  if (joined <= 1) return;
  for (TraceRequest& request : trace->requests) {
    std::vector<BlockHash> hashes;
    for (size_t i = joined; i <= request.hashes.size(); i += joined) {
      hashes.push_back(request.hashes[i - 1]);
    }
    request.hashes = std::move(hashes);
  }
  trace->block_tokens = tokens;
}

// Sessions that define as many tokens of tools are taken to define the same tools: the blocks of
// these are the same in all of them.
void ShareTools(Trace* trace) {
  const size_t shared = trace->tool_tokens / trace->block_tokens;
  if (shared == 0 || trace->requests.empty()) return;
  const std::vector<BlockHash> first = trace->requests.front().hashes;
  for (TraceRequest& request : trace->requests) {
    const size_t most = std::min({shared, first.size(), request.hashes.size()});
    for (size_t i = 0; i < most && request.hashes[i] == first[i]; ++i) {
      request.hashes[i] = TestHash(trace->tool_tokens, i);
    }
  }
}

// Each trace `copies` times, over blocks of its own, beginning at random moments.
Result<Trace> LoadSessions(const Arguments& arguments) {
  SeededRandom random(arguments.seed);
  std::vector<std::pair<std::string, uint64_t>> sessions;
  for (uint64_t copy = 1; copy <= arguments.copies; ++copy) {
    for (const std::string& path : arguments.traces) sessions.emplace_back(path, copy);
  }
  for (size_t i = sessions.size(); i > 1; --i) {
    std::swap(sessions[i - 1], sessions[random.Below(i)]);
  }
  std::vector<Trace> traces;
  double start_ms = 0;
  for (const auto& [path, copy] : sessions) {
    KVT_ASSIGN_OR_RETURN(Trace trace, LoadTrace(path, TraceFormat::kAuto, copy));
    if (sessions.size() > 1) {
      const double share = static_cast<double>(random.Below(1u << 30) + 1) / (1u << 30);
      start_ms -= std::log(share) * 3'600'000 / arguments.starts_per_hour;
    }
    for (TraceRequest& request : trace.requests) {
      request.arrival_ms += static_cast<int64_t>(start_ms);
    }
    JoinBlocks(&trace, arguments.tokens);
    if (arguments.share_tools) ShareTools(&trace);
    traces.push_back(std::move(trace));
  }
  return MergeTraces(std::move(traces));
}

uint64_t UniqueBlocks(const Trace& trace) {
  std::unordered_set<BlockHash> blocks;
  for (const TraceRequest& request : trace.requests) {
    blocks.insert(request.hashes.begin(), request.hashes.end());
  }
  return blocks.size();
}

std::vector<uint64_t> PoolSizes(const Arguments& arguments, const Trace& trace) {
  std::vector<uint64_t> blocks;
  for (const uint64_t tokens : arguments.pool_tokens) {
    blocks.push_back(tokens / trace.block_tokens);
  }
  const auto unique = static_cast<double>(UniqueBlocks(trace));
  for (const double percent : arguments.pool_percents) {
    blocks.push_back(static_cast<uint64_t>(unique * percent / 100));
  }
  return blocks;
}

void Compare(const std::string& name, Trace trace, const Arguments& arguments) {
  for (const uint64_t pool : PoolSizes(arguments, trace)) {
    Trace fitting = trace;
    uint64_t touches = 0;
    for (TraceRequest& request : fitting.requests) {
      if (request.hashes.size() > pool) request.hashes.resize(pool);
      touches += request.hashes.size();
    }
    for (const auto& [eviction, order] : kOrders) {
      const auto begin = std::chrono::steady_clock::now();
      const auto share = [&](double times) {
        return static_cast<uint64_t>(times * static_cast<double>(pool));
      };
      const OfflineReport report =
          ReplayOffline(fitting, {.pool = pool,
                                  .host = share(arguments.host_share),
                                  .disk = share(arguments.disk_share),
                                  .eviction = eviction,
                                  .closed_share = arguments.closed_percent / 100});
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      fmt::print(
          "| {} | {:.2f} M | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} | {:.2f} |\n",
          name, static_cast<double>(pool * trace.block_tokens) / 1e6, order,
          report.PoolHitPercent(), report.TotalHitPercent(),
          100 * report.saved_ms / report.asked_ms, report.NetPercent(), report.OfPossiblePercent(),
          report.disk_read_blocks, seconds * 1e6 / static_cast<double>(touches));
      (void)std::fflush(stdout);
    }
  }
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Compares the orders of eviction of a pool on traces, in memory.");
  app.add_option("traces", arguments.traces, "files, played together");
  app.add_option("--pattern", arguments.patterns, "patterns that are made, or 'all'");
  app.add_option("--pool-tokens", arguments.pool_tokens, "sizes of the pool")->delimiter(',');
  app.add_option("--pool-percent", arguments.pool_percents, "of the unique blocks")->delimiter(',');
  app.add_option("--host", arguments.host_share, "host, in sizes of the pool");
  app.add_option("--disk", arguments.disk_share, "disk, in sizes of the pool");
  app.add_option("--closed-percent", arguments.closed_percent,
                 "of the conversations, which the client closes");
  app.add_option("--copies", arguments.copies, "of each trace");
  app.add_option("--starts-per-hour", arguments.starts_per_hour, "of the traces, if several");
  app.add_option("--block-tokens", arguments.tokens, "blocks are joined to this size");
  app.add_flag("--share-tools", arguments.share_tools, "sessions with the same tools share blocks");
  app.add_option("--seed", arguments.seed, "of patterns and starts");
  CLI11_PARSE(app, argc, argv);
  if (arguments.patterns == std::vector<std::string>{"all"}) {
    arguments.patterns.assign(kAccessPatterns.begin(), kAccessPatterns.end());
  }
  fmt::print(
      "| trace | pool, tokens | order | pool hits % | all hits % | saved % | net % | net, % of the "
      "possible | blocks read | us a block |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  for (const std::string& pattern : arguments.patterns) {
    Compare(pattern, MakeAccessPattern(pattern, arguments.seed), arguments);
  }
  if (arguments.traces.empty()) return 0;
  auto sessions = LoadSessions(arguments);
  if (!sessions) {
    fmt::print(stderr, "{}\n", sessions.error().ToString());
    return 1;
  }
  const std::string& first = arguments.traces.front();
  const size_t slash = first.rfind('/');
  Compare(slash == std::string::npos ? first : first.substr(slash + 1), std::move(*sessions),
          arguments);
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
