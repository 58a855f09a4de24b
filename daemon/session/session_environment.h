// SPDX-License-Identifier: Apache-2.0
// The parts of the daemon that sessions use: put together once, before the first session, and taken
// apart into the arguments of each session's handlers.
#pragma once

#include <cstdint>

namespace kvtier {

class AttentionService;
class Cache;
class Clock;
class EventLoop;
class FormerClients;
class KeptMemories;
class Log;
class ModelRegistry;
class Tracer;
struct Config;
struct Network;
struct ServerCounters;
namespace wire {
struct DevicesReply;
}

// Everything is borrowed, is there before the first session and outlives the last, and belongs to
// the event loop.
struct SessionEnvironment {
  // The configuration in effect; a reload changes it in place.
  const Config* config = nullptr;
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Log* log = nullptr;
  Network* network = nullptr;
  Cache* cache = nullptr;
  ModelRegistry* models = nullptr;
  ServerCounters* counters = nullptr;
  Tracer* tracer = nullptr;  // null: nothing is recorded
  const wire::DevicesReply* devices = nullptr;
  AttentionService* attention = nullptr;  // null: off
  KeptMemories* kept_memories = nullptr;
  FormerClients* former_clients = nullptr;  // null: there were none
  bool pools_are_kept = false;              // so that sessions can be resumed
  // Chosen at random, so that clients can tell that the daemon was started anew.
  uint64_t daemon_generation = 0;
};

}  // namespace kvtier
