// SPDX-License-Identifier: Apache-2.0
// The knowledge that the parts of the daemon's service have of each other: one list of pointers,
// made once by Daemon in daemon/app and handed to sessions, admin operations, status and metrics
// alike.
//
// Declares its parts without including them: a file that uses a part includes that part's header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvtier {

class AttentionService;
class Cache;
class Clock;
class DescriptorStore;
class EventLoop;
class EventReportSource;
class HitHistory;
class FormerClients;
class KeptMemories;
class KeptPools;
class Log;
class LoopLag;
class ModelRegistry;
class PeerInspector;
class Server;
class ServiceManager;
class TraceRing;
class Tracer;
struct Config;
struct DiskStartFacts;
struct Network;
struct OpenedDevice;
struct ServerCounters;
namespace wire {
struct DevicesReply;
}

// Everything is borrowed, outlives the parts that hold the context, and belongs to the event loop.
// A part may rely on those that were made before it (in the order of the members); while events
// run, all of them are there. The comment of a member says so where it may be null for good.
struct ServiceContext {
  // The configuration in effect; a reload changes it in place.
  const Config* config = nullptr;
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Log* log = nullptr;
  ServiceManager* manager = nullptr;
  Network* network = nullptr;
  PeerInspector* peers = nullptr;
  int64_t started_ms = 0;  // monotonic
  // Chosen at random, so that clients can tell that the daemon was started anew.
  uint64_t daemon_generation = 0;

  // Daemon::Listen fills in the objects that Daemon::Start makes, before the first client is let
  // in.
  const DiskStartFacts* disk = nullptr;
  const std::vector<OpenedDevice>* devices = nullptr;  // by DeviceIndex
  const wire::DevicesReply* wire_devices = nullptr;    // the same, as clients hear of them
  AttentionService* attention = nullptr;               // null: off
  Tracer* tracer = nullptr;                            // null: nothing is recorded
  const TraceRing* trace = nullptr;                    // the tracer, to read from; may be null
  Cache* cache = nullptr;
  const EventReportSource* events = nullptr;  // null: off

  ModelRegistry* models = nullptr;
  ServerCounters* counters = nullptr;
  // Finds out whether kernels of a process that has ended can still write, and answers by a later
  // event on the loop. Empty: they cannot.
  std::function<void(int32_t pid, std::function<void(bool)> answer)> kernels_remain;
  KeptMemories* kept_memories = nullptr;
  DescriptorStore* descriptors = nullptr;
  const std::string* host_adoption = nullptr;  // MappedArena::adoption()
  const KeptPools* kept_pools = nullptr;
  FormerClients* former_clients = nullptr;  // null: there were none
  bool pools_are_kept = false;              // so that sessions can be resumed
  Server* server = nullptr;
  const LoopLag* loop_lag = nullptr;
  const HitHistory* history = nullptr;
};

}  // namespace kvtier
