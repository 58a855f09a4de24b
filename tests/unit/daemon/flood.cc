// SPDX-License-Identifier: Apache-2.0
// kvtier-flood: how long a quiet client waits for a PING while many connections ask a running
// daemon for as much as one message may name.
//
//   kvtier-flood SOCKET release|commit|lookup|none [CONNECTIONS [PROCESSES [SECONDS]]]
//
// Prints the quiet client's round trips. The figures of docs/benchmarks/host.md are made with it.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/unit/daemon/wire_client.h"

namespace kvtier {
namespace {

constexpr uint32_t kHandles = 16'384;
constexpr uint32_t kCommitItems = 8192;
constexpr int64_t kPauseUs = 1000;  // between two pings: a client that asks for little

struct FloodOptions {
  std::string socket;
  std::string kind;
  int connections = 60;
  int processes = 2;
  int seconds = 5;
};

// The largest valid message of its kind, of which every item is refused or missed.
std::vector<std::byte> FloodFrame(const std::string& kind, PoolId pool) {
  std::vector<std::byte> frame;
  if (kind == "release") {
    wire::Release release{.pool = pool};
    release.blocks.assign(kHandles, BlockHandle{BlockIndex(1'000'000'000), 1});
    wire::Encode(release, 1, &frame, wire::kFlagWantReply);
  } else if (kind == "commit") {
    wire::Commit commit{.pool = pool};
    for (uint32_t i = 0; i < kCommitItems; ++i) {
      commit.items.push_back(
          {.block = {BlockIndex(1'000'000'000), 1}, .hash = TestHash(i), .tokens = 1});
    }
    wire::Encode(commit, 1, &frame, wire::kFlagWantReply);
  } else {
    std::vector<BlockHash> hashes;
    for (uint32_t i = 0; i < kHandles; ++i) hashes.push_back(TestHash(i));
    wire::Encode(wire::Lookup{.pool = pool, .hashes = hashes}, 1, &frame);
  }
  return frame;
}

// One connection that sends the same frame for ever and throws the replies away.
class Flooder {
 public:
  explicit Flooder(const FloodOptions& options) : client_(options.socket) {
    frame_ = FloodFrame(options.kind, client_.Attach().pool);
  }
  [[nodiscard]] int socket() const { return client_.socket(); }

  // Returns false when the daemon has closed the connection.
  [[nodiscard]] bool Continue(short ready) {
    if ((ready & POLLIN) != 0) {
      static std::vector<std::byte> thrown_away(256 << 10);
      const ssize_t got = ::recv(socket(), thrown_away.data(), thrown_away.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    }
    if ((ready & POLLOUT) != 0) {
      const ssize_t sent = ::send(socket(), frame_.data() + sent_, frame_.size() - sent_,
                                  MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) sent_ = (sent_ + static_cast<size_t>(sent)) % frame_.size();
    }
    return (ready & (POLLERR | POLLHUP)) == 0;
  }

 private:
  WireClient client_;
  std::vector<std::byte> frame_;
  size_t sent_ = 0;
};

// A process of its own: floods until it is killed.
[[noreturn]] void Flood(const FloodOptions& options, int connections, int ready_fd) {
  std::vector<std::unique_ptr<Flooder>> flooders;
  std::vector<pollfd> polled;
  for (int i = 0; i < connections; ++i) {
    flooders.push_back(std::make_unique<Flooder>(options));
    polled.push_back({flooders.back()->socket(), POLLIN | POLLOUT, 0});
  }
  if (::write(ready_fd, "r", 1) != 1) std::_Exit(1);
  while (::poll(polled.data(), polled.size(), -1) > 0) {
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !flooders[i]->Continue(polled[i].revents)) {
        fmt::print(stderr, "kvtier-flood: the daemon closed a connection\n");
        std::_Exit(1);
      }
    }
  }
  std::_Exit(1);
}

std::vector<int64_t> MeasurePings(WireClient* quiet, int seconds) {
  std::vector<int64_t> round_trips_us;
  const int64_t end_us = MonotonicUs() + int64_t{seconds} * 1'000'000;
  while (MonotonicUs() < end_us) {
    const int64_t begun_us = MonotonicUs();
    (void)quiet->Call<wire::Pong>(wire::Ping{});
    round_trips_us.push_back(MonotonicUs() - begun_us);
    // Without a pause this client would be a flood itself, and pay for its turns as one.
    ::usleep(kPauseUs);
  }
  std::ranges::sort(round_trips_us);
  return round_trips_us;
}

int Main(const FloodOptions& options) {
  int ready[2];
  if (::pipe(ready) != 0) return 1;
  std::vector<pid_t> floods;
  for (int i = 0; options.kind != "none" && i < options.processes; ++i) {
    const pid_t child = ::fork();
    if (child == 0) Flood(options, options.connections / options.processes, ready[1]);
    floods.push_back(child);
  }
  WireClient quiet(options.socket);
  (void)quiet.Hello();
  char byte = 0;
  for (size_t i = 0; i < floods.size(); ++i) (void)!::read(ready[0], &byte, 1);
  (void)MeasurePings(&quiet, 1);  // until the queues are full
  const std::vector<int64_t> us = MeasurePings(&quiet, options.seconds);
  const auto at = [&](double share) {
    return static_cast<double>(
               us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))]) /
           1000;
  };
  fmt::print("{}: {} pings, p50 {:.2f} ms, p99 {:.2f} ms, max {:.2f} ms\n", options.kind, us.size(),
             at(0.5), at(0.99), at(1));
  for (const pid_t child : floods) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "kvtier-flood SOCKET release|commit|lookup|none [CONNECTIONS [PROCESSES "
               "[SECONDS]]]\n");
    return 2;
  }
  kvtier::FloodOptions options{.socket = argv[1], .kind = argv[2]};
  if (argc > 3) options.connections = std::atoi(argv[3]);
  if (argc > 4) options.processes = std::atoi(argv[4]);
  if (argc > 5) options.seconds = std::atoi(argv[5]);
  return kvtier::Main(options);
}
