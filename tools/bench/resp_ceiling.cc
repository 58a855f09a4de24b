// SPDX-License-Identifier: Apache-2.0
// The rates of one connection of hiredis to and from a server with nothing around it: commands are
// appended, then their replies are read. tools/bench/cold.sh compares the library for cold stores
// with it.
#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/c_pointer.h"

namespace {

using SteadyClock = std::chrono::steady_clock;

// The library is measured with as many.
constexpr uint64_t kObjects = 128;
constexpr uint64_t kWrittenBytes = uint64_t{1} << 30;

void Append(redisContext* context, bool reads, uint64_t number, const std::string& object) {
  const uint64_t objects = reads ? kObjects : std::max(kObjects, kWrittenBytes / object.size());
  const std::string name = fmt::format("kvtier/1/bench/model-1/{:064x}", number % objects);
  if (reads) {
    (void)redisAppendCommand(context, "GETRANGE %b 0 %lu", name.data(), name.size(), object.size());
  } else {
    (void)redisAppendCommand(context, "SET %b %b EX 3600", name.data(), name.size(), object.data(),
                             object.size());
  }
}

bool Next(redisContext* context) {
  void* raw = nullptr;
  if (redisGetReply(context, &raw) != REDIS_OK) return false;
  const kvtier::CPointer<redisReply, freeReplyObject> reply(static_cast<redisReply*>(raw));
  return reply->type != REDIS_REPLY_ERROR;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: {} SOCKET put|get BYTES DEPTH SECONDS\n", argv[0]);
    return 2;
  }
  const kvtier::CPointer<redisContext, redisFree> context(redisConnectUnix(argv[1]));
  if (!context || context->err != 0) return 1;
  const bool reads = std::string(argv[2]) == "get";
  const std::string object(std::strtoull(argv[3], nullptr, 10), 'x');
  const uint64_t depth = std::strtoull(argv[4], nullptr, 10);
  const auto begin = SteadyClock::now();
  const std::chrono::duration<double> limit(std::strtod(argv[5], nullptr));
  uint64_t ended = 0;
  while (SteadyClock::now() - begin < limit) {
    for (uint64_t i = 0; i < depth; ++i) Append(context.get(), reads, ended + i, object);
    for (uint64_t i = 0; i < depth; ++i, ++ended) {
      if (!Next(context.get())) return 1;
    }
  }
  const std::chrono::duration<double> elapsed = SteadyClock::now() - begin;
  fmt::print("{:.1f}\n", static_cast<double>(ended * object.size()) / 1048576 / elapsed.count());
  return 0;
}
