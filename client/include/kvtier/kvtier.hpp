// SPDX-License-Identifier: Apache-2.0
// The C++ face of libkvtier: header-only over the C ABI, whose rules on threads, errors and
// reconnecting hold here too (kvtier.h). Handles are move-only and give back what they hold.
//
//   auto connection = kvt::Connection::Connect("/run/kvtier/kvtier.sock");
//   auto model = connection->RegisterModel(record);
//   auto pool = connection->Attach(model->model);
//   auto sequence = pool->OpenSequence(tokens);
//
// Needs C++20 and nothing of this repository but kvtier.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvtier.h"
#include "kvtier_result.hpp"

namespace kvt {

struct Handle {
  void operator()(kvt_connection* connection) const { kvt_disconnect(connection); }
  void operator()(kvt_pool* pool) const { kvt_pool_close(pool); }
  void operator()(kvt_sequence* sequence) const { kvt_sequence_close(sequence); }
  void operator()(kvt_workspace* workspace) const { kvt_workspace_close(workspace); }
  void operator()(kvt_region* region) const { kvt_region_close(region); }
};

namespace internal {

// The value that a C function gives by its last argument.
template <typename Value, typename Function, typename... Arguments>
Result<Value> Given(Function* function, Arguments... arguments) {
  Value value{};
  if constexpr (requires { value.size; }) value.size = sizeof(value);
  if (function(arguments..., &value)) return Error::Last();
  return value;
}

// The owner of the object that a C function gives so.
template <typename Owner, typename Object, typename Function, typename... Arguments>
Result<Owner> Made(Function* function, Arguments... arguments) {
  Object* object = nullptr;
  if (function(arguments..., &object)) return Error::Last();
  return Owner(object);
}

}  // namespace internal

// Blocks held by this process, released when the span goes. The pool must outlive it.
class BlockSpan {
 public:
  BlockSpan() = default;
  BlockSpan(kvt_pool* pool, std::vector<kvt_block> blocks)
      : pool_(pool), blocks_(std::move(blocks)) {}
  BlockSpan(BlockSpan&& other) noexcept
      : pool_(other.pool_), blocks_(std::exchange(other.blocks_, {})) {}
  BlockSpan& operator=(BlockSpan&& other) noexcept {
    if (this != &other) {
      Release();
      pool_ = other.pool_;
      blocks_ = std::exchange(other.blocks_, {});
    }
    return *this;
  }
  ~BlockSpan() { Release(); }

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  [[nodiscard]] bool empty() const { return blocks_.empty(); }
  [[nodiscard]] const kvt_block& operator[](size_t i) const { return blocks_[i]; }
  [[nodiscard]] std::span<const kvt_block> blocks() const { return blocks_; }

  // Gives the blocks back now. Errors of the daemon come by Connection::TakeErrors.
  void Release() { Shrink(0); }
  // Gives the blocks from `count` on back.
  void Shrink(size_t count) {
    if (count >= blocks_.size()) return;
    (void)kvt_release(pool_, blocks_.data() + count, blocks_.size() - count, nullptr);
    blocks_.resize(count);
  }
  // Hands the blocks over to the caller, which then has to release them.
  [[nodiscard]] std::vector<kvt_block> Take() { return std::exchange(blocks_, {}); }

 private:
  kvt_pool* pool_ = nullptr;
  std::vector<kvt_block> blocks_;
};

// The result of an acquire.
struct Acquired {
  BlockSpan hits;                                 // the longest cached prefix
  std::vector<kvt_acquired_block> sources;        // where each hit was found, and its tokens
  BlockSpan new_blocks;                           // private blocks
  uint32_t partial_block = KVT_NO_PARTIAL_BLOCK;  // which of the partial_blocks hit
  uint32_t first_hit = 0;                         // which of the hashes `hits` begin with
  kvt_load load{};                                // id 0: all hits are usable
  kvt_miss miss = KVT_MISS_NONE;
};

// One growing sequence of tokens; kvtier_sequence.h describes the calls.
class Sequence {
 public:
  explicit Sequence(kvt_sequence* sequence) : sequence_(sequence) {}

  [[nodiscard]] kvt_sequence* get() const { return sequence_.get(); }
  Status Wait(int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return ToStatus(kvt_sequence_wait(get(), timeout_ms));
  }
  [[nodiscard]] kvt_sequence_info Info() const {
    kvt_sequence_info info{};
    info.size = sizeof(info);
    (void)kvt_sequence_get_info(get(), &info);
    return info;
  }
  [[nodiscard]] uint64_t tokens() const { return Info().tokens; }
  [[nodiscard]] uint64_t cached_tokens() const { return Info().cached_tokens; }
  Status Check() { return ToStatus(kvt_sequence_check(get())); }
  Result<std::vector<int32_t>> BlockTable() const {
    std::vector<int32_t> table(Info().blocks);
    size_t count = 0;
    if (kvt_sequence_block_table(get(), table.data(), table.size(), &count)) return Error::Last();
    table.resize(count);
    return table;
  }
  // The first `count` logical blocks, for Workspace::Attend.
  Result<std::vector<kvt_block>> Blocks(size_t count) const {
    std::vector<kvt_block> blocks(count);
    if (kvt_sequence_blocks(get(), blocks.data(), count)) return Error::Last();
    return blocks;
  }
  Result<std::vector<int64_t>> SlotMapping(uint64_t first, size_t count) const {
    std::vector<int64_t> slots(count);
    if (kvt_sequence_slot_mapping(get(), first, count, slots.data())) return Error::Last();
    return slots;
  }
  Status Append(std::span<const uint32_t> tokens) {
    return ToStatus(kvt_sequence_append(get(), tokens.data(), tokens.size()));
  }
  Status MarkComputed(uint64_t tokens) {
    return ToStatus(kvt_sequence_mark_computed(get(), tokens));
  }
  Status Finish() { return ToStatus(kvt_sequence_finish(get())); }
  // Gives a hint about the sequence; see kvtier_hints.h. Returns the number of blocks that took it.
  Result<uint32_t> Hint(kvt_hint hint, int64_t returns_in_ms = 0) {
    return internal::Given<uint32_t>(kvt_sequence_hint, get(), hint, returns_in_ms);
  }
  Result<Sequence> Fork() {
    return internal::Made<Sequence, kvt_sequence>(kvt_sequence_fork, get());
  }

 private:
  std::unique_ptr<kvt_sequence, Handle> sequence_;
};

// Memory shared with the daemon for attention that it computes; see kvtier_attention.h. The pool
// must outlive it.
class Workspace {
 public:
  explicit Workspace(kvt_workspace* workspace) : workspace_(workspace) {}

  [[nodiscard]] kvt_workspace* get() const { return workspace_.get(); }
  [[nodiscard]] Result<kvt_workspace_info> Info() const {
    return internal::Given<kvt_workspace_info>(kvt_workspace_get_info, get());
  }
  // Returns the nanoseconds that it took.
  Result<uint64_t> Attend(const kvt_attend_request& request,
                          int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return internal::Given<uint64_t>(kvt_attend, get(), &request, timeout_ms);
  }

 private:
  std::unique_ptr<kvt_workspace, Handle> workspace_;
};

class Pool;

// The request for the pool of one group of a model.
struct GroupRequest {
  const Pool* pool = nullptr;
  std::span<const kvt_hash> hashes;
  uint32_t new_blocks = 0;
  std::span<const kvt_hash> partial_blocks = {};
};
// See kvt_acquire_groups; one Acquired for each request. The pools must outlive them.
inline Result<std::vector<Acquired>> AcquireGroups(const std::vector<GroupRequest>& requests,
                                                   kvt_load_order order = KVT_LOAD_BLOCKS);

// The mapped blocks of one group of a model. The connection must outlive it.
class Pool {
 public:
  explicit Pool(kvt_pool* pool) : pool_(pool) {}

  [[nodiscard]] kvt_pool* get() const { return pool_.get(); }
  [[nodiscard]] uint64_t block_bytes() const { return kvt_pool_block_bytes(get()); }
  // All 0 before the first attachment; see kvt_attach.
  [[nodiscard]] kvt_pool_info Info() const {
    kvt_pool_info info{};
    info.size = sizeof(info);
    (void)kvt_pool_get_info(get(), &info);
    return info;
  }
  // The bytes of one block, where the pool is host memory.
  Result<std::span<std::byte>> Bytes(const kvt_block& block) const {
    void* address = nullptr;
    if (kvt_pool_block_address(get(), block, &address)) return Error::Last();
    return std::span(static_cast<std::byte*>(address), block_bytes());
  }
  // See kvtier_hit_plan.h.
  Status SetComputeCost(double per_token_us, double per_pair_us, double fixed_us) {
    const kvt_compute_cost cost{sizeof(cost), per_token_us, per_pair_us, fixed_us};
    return ToStatus(kvt_pool_set_compute_cost(get(), &cost));
  }
  void DropStaleMappings() { kvt_pool_drop_stale_mappings(get()); }

  // A CUDA pool's memory for kernels of this process, and copies whatever the device.
  [[nodiscard]] Result<kvt_device_mapping> MapDevice() const {
    return internal::Given<kvt_device_mapping>(kvt_pool_map_device, get());
  }
  void UnmapDevice() { kvt_pool_unmap_device(get()); }
  Status Read(const kvt_block& block, std::span<std::byte> bytes, uint64_t offset = 0) const {
    return ToStatus(kvt_pool_read(get(), block, offset, bytes.data(), bytes.size()));
  }
  Status Write(const kvt_block& block, std::span<const std::byte> bytes,
               uint64_t offset = 0) const {
    return ToStatus(kvt_pool_write(get(), block, offset, bytes.data(), bytes.size()));
  }

  Result<Acquired> Acquire(std::span<const kvt_hash> hashes,
                           std::span<const kvt_hash> partial_blocks = {}, uint32_t new_blocks = 0,
                           kvt_load_order order = KVT_LOAD_BLOCKS) {
    const GroupRequest request{this, hashes, new_blocks, partial_blocks};
    Result<std::vector<Acquired>> acquired = AcquireGroups({request}, order);
    if (!acquired) return acquired.error();
    return std::move(acquired->front());
  }
  // Waits until the first `up_to` hits are usable or the load is over. Hits that could not be
  // loaded are then taken out of `acquired` and released.
  Result<kvt_load_progress> Wait(Acquired* acquired, uint32_t up_to,
                                 int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return WaitBy(kvt_wait, acquired, up_to, timeout_ms);
  }
  // The same until the first `layers` layers of all hits are usable.
  Result<kvt_load_progress> WaitLayers(Acquired* acquired, uint32_t layers,
                                       int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return WaitBy(kvt_wait_layers, acquired, layers, timeout_ms);
  }
  // Has the stream wait instead; ask Wait or WaitLayers afterwards whether its results count.
  Status WaitOnStream(const Acquired& acquired, uint32_t up_to, void* stream) {
    return ToStatus(kvt_wait_on_stream(get(), acquired.load, up_to, stream));
  }
  // Fire and forget; errors come by Connection::TakeErrors.
  Status Commit(std::span<const kvt_commit_entry> entries) {
    return ToStatus(kvt_commit(get(), entries.data(), entries.size(), nullptr));
  }
  // Waits for the outcome of each entry, see kvt_commit.
  Result<std::vector<kvt_status>> CommitAndWait(std::span<const kvt_commit_entry> entries) {
    std::vector<kvt_status> results(entries.size());
    if (kvt_commit(get(), entries.data(), entries.size(), results.data())) return Error::Last();
    return results;
  }
  Status Release(std::span<const kvt_block> blocks) {
    return ToStatus(kvt_release(get(), blocks.data(), blocks.size(), nullptr));
  }
  // Whether bytes read from these blocks before are theirs; see kvt_check_blocks.
  Status Check(std::span<const kvt_block> blocks) const {
    return ToStatus(kvt_check_blocks(get(), blocks.data(), blocks.size()));
  }
  Result<uint32_t> Prefetch(std::span<const kvt_hash> hashes) {
    return internal::Given<uint32_t>(kvt_prefetch, get(), hashes.data(), hashes.size());
  }
  Result<uint32_t> Pin(std::span<const kvt_hash> hashes, int64_t ttl_ms) {
    return internal::Given<uint32_t>(kvt_pin, get(), hashes.data(), hashes.size(), ttl_ms);
  }
  // Gives a hint about the sequence that has these hashes; see kvtier_hints.h. Returns the number
  // of blocks that took it.
  Result<uint32_t> Hint(std::span<const kvt_hash> hashes, kvt_hint hint,
                        int64_t returns_in_ms = 0) {
    return internal::Given<uint32_t>(kvt_hint_blocks, get(), hashes.data(), hashes.size(), hint,
                                     returns_in_ms);
  }
  // KVT_PRESENT_* bits of each block.
  Result<std::vector<uint8_t>> Lookup(std::span<const kvt_hash> hashes) {
    std::vector<uint8_t> presence(hashes.size());
    if (kvt_lookup(get(), hashes.data(), hashes.size(), presence.data())) return Error::Last();
    return presence;
  }
  Result<Workspace> OpenWorkspace(uint64_t bytes) {
    return internal::Made<Workspace, kvt_workspace>(kvt_workspace_open, get(), bytes);
  }
  // `options` may be null.
  Result<Sequence> OpenSequence(std::span<const uint32_t> tokens,
                                const kvt_sequence_options* options = nullptr) {
    return internal::Made<Sequence, kvt_sequence>(kvt_sequence_open, get(), options, tokens.data(),
                                                  tokens.size());
  }

 private:
  template <typename Function>
  Result<kvt_load_progress> WaitBy(Function* wait, Acquired* acquired, uint32_t steps,
                                   int64_t timeout_ms) {
    kvt_load_progress progress{};
    progress.size = sizeof(progress);
    progress.ready = static_cast<uint32_t>(acquired->hits.size());
    progress.finished = 1;
    progress.layers = KVT_ALL_LAYERS;
    if (acquired->load.id == 0) return progress;
    if (wait(get(), acquired->load, steps, timeout_ms, &progress)) return Error::Last();
    if (progress.finished && progress.ready < acquired->hits.size()) {
      acquired->hits.Shrink(progress.ready);
      acquired->sources.resize(progress.ready);
      acquired->partial_block = KVT_NO_PARTIAL_BLOCK;
      acquired->miss = progress.miss;
    }
    return progress;
  }

  std::unique_ptr<kvt_pool, Handle> pool_;
};

// A block of a transfer that could not be stored or loaded. position: in the call's blocks.
struct TransferFailure {
  uint32_t position = 0;
  kvt_miss reason = KVT_MISS_NONE;
};

// Memory of the caller's that the daemon copies to and from; see kvtier_region.h, also for what
// must not be touched during a transfer. Closing waits until nothing touches the memory. The
// connection must outlive it.
class Region {
 public:
  explicit Region(kvt_region* region) : region_(region) {}

  [[nodiscard]] kvt_region* get() const { return region_.get(); }
  [[nodiscard]] uint64_t block_bytes() const { return kvt_region_block_bytes(get()); }
  [[nodiscard]] bool IsConnected() { return kvt_region_is_connected(get()) != 0; }
  [[nodiscard]] bool DaemonEnded() { return kvt_region_daemon_ended(get()) != 0; }
  void HangUp() { (void)kvt_region_hang_up(get()); }

  // Store and Load begin a transfer and return its number.
  Result<uint64_t> Store(std::span<const kvt_store_block> blocks) {
    return internal::Given<uint64_t>(kvt_region_store, get(), blocks.data(), blocks.size());
  }
  Result<uint64_t> Load(std::span<const kvt_load_block> blocks,
                        kvt_load_order order = KVT_LOAD_BLOCKS) {
    return internal::Given<uint64_t>(kvt_region_load, get(), blocks.data(), blocks.size(), order);
  }
  // Transfers that have ended, each once; at most `most` of them. Never waits.
  [[nodiscard]] std::vector<kvt_transfer_end> Poll(size_t most = 256) {
    std::vector<kvt_transfer_end> ends(most);
    size_t count = 0;
    (void)kvt_region_poll(get(), ends.data(), ends.size(), &count);
    ends.resize(count);
    return ends;
  }
  Result<kvt_transfer_end> Wait(uint64_t transfer, int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return internal::Given<kvt_transfer_end>(kvt_region_wait, get(), transfer, timeout_ms);
  }
  // How many layers of a load in KVT_LOAD_LAYERS have come, and waiting for some of them; see
  // kvt_region_layers_loaded for how a load that fails ends both.
  Result<uint32_t> LayersLoaded(uint64_t transfer) {
    return internal::Given<uint32_t>(kvt_region_layers_loaded, get(), transfer);
  }
  Status WaitLayers(uint64_t transfer, uint32_t layers, int64_t timeout_ms = KVT_DEFAULT_TIMEOUT) {
    return ToStatus(kvt_region_wait_layers(get(), transfer, layers, timeout_ms));
  }
  // The failures of a reported transfer, given once: in ascending order of their positions.
  [[nodiscard]] std::vector<TransferFailure> Failures(const kvt_transfer_end& end) {
    std::vector<uint32_t> positions(end.failed);
    std::vector<kvt_miss> reasons(end.failed);
    size_t count = 0;
    (void)kvt_region_failures(get(), end.transfer, positions.data(), reasons.data(), end.failed,
                              &count);
    std::vector<TransferFailure> failures;
    for (size_t i = 0; i < std::min<size_t>(count, end.failed); ++i) {
      failures.push_back({positions[i], reasons[i]});
    }
    return failures;
  }
  // KVT_PRESENT_* bits of each block.
  Result<std::vector<uint8_t>> Lookup(std::span<const kvt_hash> hashes) {
    std::vector<uint8_t> presence(hashes.size());
    if (kvt_region_lookup(get(), hashes.data(), hashes.size(), presence.data()))
      return Error::Last();
    return presence;
  }
  Result<uint32_t> Pin(std::span<const kvt_hash> hashes, int64_t ttl_ms) {
    return internal::Given<uint32_t>(kvt_region_pin, get(), hashes.data(), hashes.size(), ttl_ms);
  }
  // Gives a hint about the sequence that has these hashes; see kvtier_hints.h. Returns the number
  // of blocks that took it.
  Result<uint32_t> Hint(std::span<const kvt_hash> hashes, kvt_hint hint,
                        int64_t returns_in_ms = 0) {
    return internal::Given<uint32_t>(kvt_region_hint, get(), hashes.data(), hashes.size(), hint,
                                     returns_in_ms);
  }

 private:
  std::unique_ptr<kvt_region, Handle> region_;
};

class Connection {
 public:
  explicit Connection(kvt_connection* connection) : connection_(connection) {}
  // Without a path, the daemon that serves this user (see kvt_connect). `options` may be null.
  static Result<Connection> Connect(const std::string& socket_path = {},
                                    const kvt_connect_options* options = nullptr) {
    return internal::Made<Connection, kvt_connection>(kvt_connect, socket_path.c_str(), options);
  }

  [[nodiscard]] kvt_connection* get() const { return connection_.get(); }
  [[nodiscard]] bool IsConnected() { return kvt_is_connected(get()) != 0; }
  // Returns the round trip in microseconds.
  Result<double> Ping() { return internal::Given<double>(kvt_ping, get()); }
  Result<kvt_stats> Stats() { return internal::Given<kvt_stats>(kvt_get_stats, get()); }
  Result<kvt_model_info> RegisterModel(const kvt_model_record& record) {
    return internal::Given<kvt_model_info>(kvt_register_model, get(), &record);
  }
  Result<std::vector<kvt_device>> Devices() {
    std::vector<kvt_device> devices(KVT_MAX_DEVICES);
    size_t count = 0;
    if (kvt_get_devices(get(), devices.data(), devices.size(), &count)) return Error::Last();
    devices.resize(count);
    return devices;
  }
  // `device`: a position in Devices(), or KVT_ANY_DEVICE.
  Result<Pool> Attach(uint32_t model, uint64_t pool_bytes = 0, uint32_t device = KVT_ANY_DEVICE,
                      uint32_t group = 0) {
    return internal::Made<Pool, kvt_pool>(kvt_attach, get(), model, group, device, pool_bytes);
  }
  Result<Region> OpenRegion(uint32_t model, const kvt_region_options& options) {
    return internal::Made<Region, kvt_region>(kvt_region_open, get(), model, &options);
  }
  // Waits until the daemon has done all that was sent before.
  Status Flush() { return ToStatus(kvt_flush(get())); }
  // The errors of commits and releases that were only sent, oldest first.
  [[nodiscard]] std::vector<kvt_async_error> TakeErrors() {
    std::vector<kvt_async_error> errors(1024);
    errors.resize(kvt_take_errors(get(), errors.data(), errors.size(), nullptr));
    return errors;
  }

 private:
  std::unique_ptr<kvt_connection, Handle> connection_;
};

inline Result<std::vector<Acquired>> AcquireGroups(const std::vector<GroupRequest>& requests,
                                                   kvt_load_order order) {
  const size_t count = requests.size();
  std::vector<kvt_pool*> pools;
  std::vector<kvt_acquire_request> asked(count);
  std::vector<kvt_acquire_reply> replies(count);
  std::vector<std::vector<kvt_acquired_block>> hits(count);
  std::vector<std::vector<kvt_block>> allocated(count);
  for (size_t i = 0; i < count; ++i) {
    const GroupRequest& request = requests[i];
    pools.push_back(request.pool->get());
    hits[i].resize(request.hashes.size() + (request.partial_blocks.empty() ? 0 : 1));
    allocated[i].resize(request.new_blocks);
    asked[i].size = sizeof(asked[i]);
    asked[i].hashes = request.hashes.data();
    asked[i].hash_count = request.hashes.size();
    asked[i].partial_blocks = request.partial_blocks.data();
    asked[i].partial_count = request.partial_blocks.size();
    asked[i].new_blocks = request.new_blocks;
    asked[i].load_order = order;
    replies[i].size = sizeof(replies[i]);
    replies[i].hits = hits[i].data();
    replies[i].hits_capacity = hits[i].size();
    replies[i].new_blocks = allocated[i].data();
    replies[i].new_block_capacity = allocated[i].size();
  }
  if (kvt_acquire_groups(pools.data(), asked.data(), count, replies.data())) return Error::Last();
  std::vector<Acquired> acquired(count);
  for (size_t i = 0; i < count; ++i) {
    hits[i].resize(replies[i].hit_count);
    std::vector<kvt_block> blocks;
    blocks.reserve(hits[i].size());
    for (const kvt_acquired_block& hit : hits[i]) blocks.push_back(hit.block);
    acquired[i].hits = BlockSpan(pools[i], std::move(blocks));
    acquired[i].sources = std::move(hits[i]);
    acquired[i].new_blocks = BlockSpan(pools[i], std::move(allocated[i]));
    acquired[i].partial_block = replies[i].partial_block;
    acquired[i].first_hit = replies[i].first_hit;
    acquired[i].load = replies[i].load;
    acquired[i].miss = replies[i].miss;
  }
  return acquired;
}

// See kvt_hash_blocks.
inline Result<std::vector<kvt_hash>> HashBlocks(std::span<const uint32_t> tokens,
                                                const kvt_hash_options& options) {
  if (options.block_tokens == 0) return Error{KVT_INVALID_ARGUMENT, "zero_block_tokens", {}};
  std::vector<kvt_hash> hashes((tokens.size() + options.block_tokens - 1) / options.block_tokens);
  size_t count = 0;
  if (kvt_hash_blocks(&options, tokens.data(), tokens.size(), hashes.data(), hashes.size(), &count))
    return Error::Last();
  hashes.resize(count);
  return hashes;
}

}  // namespace kvt
