// SPDX-License-Identifier: Apache-2.0
// One client's session: HELLO first, then requests, until the connection ends. The requests
// themselves are in session_requests.cc, session_acquire.cc, session_regions.cc,
// session_kept_memory.cc, session_resume.cc and session_attention.cc.
//
// Whatever a client does wrong costs it that call, or at most this session.
//
// Event loop only, like all that it calls. The server owns the session; the session owns its
// connection and everything that the client may have used up: attached pools, workspaces, running
// attention and, in the cache, its references and private blocks. All of it is given back when the
// session ends, however it ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/gate.h"
#include "base/ids.h"
#include "base/posix.h"
#include "daemon/attention/attend_plan.h"
#include "daemon/attention/attention_service.h"
#include "daemon/config/config.h"
#include "daemon/net/connection.h"
#include "daemon/net/peer.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"
#include "daemon/runtime/service_context.h"
#include "daemon/session/group_acquire.h"
#include "daemon/session/held_stores.h"
#include "daemon/session/load_events.h"
#include "daemon/session/models.h"
#include "daemon/session/request_trace.h"
#include "gpu/counter_page.h"
#include "protocol/messages.h"
#include "tiers/cache.h"

namespace kvtier {

// Acquires of one session that may wait for blocks at once. The next request is not read before one
// of them is answered, so that a client cannot pile up waiting requests in the daemon's memory. An
// engine seldom has more than a few dozen requests to begin in one step.
inline constexpr uint32_t kMaxAcquiresInFlight = 64;
// The same for attention: enough to keep the device busy while replies travel, and few enough that
// a client's jobs cannot delay another's by more than a few of them.
inline constexpr size_t kMaxAttendsInFlight = 4;
// Blocks of transfers that one session may have under way before the next request is read, each
// transfer counting as kTransferPrice more: they take memory here until they are reported.
inline constexpr uint64_t kMaxTransferBlocksInFlight = 1u << 16;
inline constexpr uint64_t kTransferPrice = 64;
// How many of these may be blocks of stores that wait for the client. The client may wait itself
// for a load that it sends behind them, for which there must be room.
inline constexpr size_t kMaxHeldBlocks = kMaxTransferBlocksInFlight / 2;
// The longest frame of a connection that has not said HELLO yet: a process that only connects must
// not be able to make the daemon allocate a full frame's buffer.
inline constexpr uint32_t kMaxHelloFrameBytes = 64u << 10;
// The longest time for which a client may pin blocks, a year. It keeps sums of times far from
// overflow.
inline constexpr int64_t kMaxPinTtlMs = int64_t{366} * 24 * 60 * 60 * 1000;
// The longest time for which a client may expect a sequence back, a day.
inline constexpr int64_t kMaxReturnsInMs = int64_t{24} * 60 * 60 * 1000;

class Session final : public ConnectionListener {
 public:
  // For `kvtierctl status`.
  struct Summary {
    SessionId id;
    std::string tenant;
    std::string client_name;
    int32_t pid = 0;
    uint32_t uid = 0;
    uint64_t references = 0;
  };

  // `on_ended` is called once, from an event, when the session is over and has closed itself in the
  // cache; the session may be destroyed from a later event on.
  Session(SessionId id, const ServiceContext& services, UniqueFd socket, Peer peer,
          std::string tenant, std::function<void(Session*)> on_ended);
  ~Session() override;

  void Start();
  // Tells the client why and ends.
  void CloseWith(const Error& error) { connection_.CloseWith(error); }

  [[nodiscard]] SessionId id() const { return id_; }
  [[nodiscard]] Connection& connection() { return connection_; }
  [[nodiscard]] Summary summary() const;
  // Whether its process may have blocks that only it writes to: those outlive the session.
  [[nodiscard]] bool had_private_blocks() const { return had_private_blocks_; }
  // The credentials, for the quarantine. REQUIRES: the session has ended.
  [[nodiscard]] Peer TakePeer() { return std::move(peer_); }

  void OnFrame(const wire::Frame& frame) override;
  void OnEnding(std::function<void()> end) override;
  void OnClosed(const Error& why) override;

 private:
  // A pool that this session may name in its requests. A pool id that is not in `pools_` is
  // refused, even if the pool exists for another tenant.
  struct AttachedPool {
    ModelHold model;
    uint32_t group = 0;
    uint32_t device = 0;
    NamespaceId namespace_id;
    uint32_t region_blocks = 0;  // not 0: a region, and no pool
    uint32_t attaches = 0;       // of a pool, that DETACH has not taken back
    // Blocks that the client holds there, as this session has counted them. For status only; the
    // cache counts for itself and enforces the limit.
    uint64_t held = 0;
    // The gate of a pool: closes with the last DETACH, so that a later attachment is told from this
    // one.
    std::shared_ptr<Gate> attachment = nullptr;

    [[nodiscard]] const KvGroup& kv_group() const { return model->record.groups[group]; }
  };
  // Which request is being answered. Request id 0 means that the client expects no answer to match;
  // `want_reply` asks for an answer where success is otherwise silent.
  struct Call {
    uint64_t request_id = 0;
    bool want_reply = false;
  };

  // The process has ended. Its socket normally ends by itself, unless a child has inherited it.
  void OnProcessEnded();
  void OnHello(const wire::Frame& frame);
  void Dispatch(const wire::Frame& frame);
  // Decodes the frame as a Message and calls `handler`; refuses what cannot be decoded.
  template <typename Message>
  void Handle(const wire::Frame& frame, Status (Session::*handler)(const Call&, const Message&));
  // Answers with an ERROR. One that answers no request ends the session.
  void Refuse(const Call& call, const Error& error);
  template <typename Message>
  void Reply(const Call& call, const Message& message) {
    connection_.Send(call.request_id, message);
  }

  // One method per request. An error that is returned becomes the answer and leaves the state as it
  // was; success means that the reply was queued, or will be by a later event. All fields of
  // `request` are within the bounds of the wire format, and are otherwise unchecked when the method
  // begins. Views in `request` point into the frame and are valid during the call only.
  Status OnRegisterModel(const Call& call, const wire::RegisterModel& request);
  Status OnDevices(const Call& call, const wire::Devices& request);
  Status OnAttach(const Call& call, const wire::Attach& request);
  Status OnDetach(const Call& call, const wire::Detach& request);
  Status OnAcquire(const Call& call, const wire::Acquire& request);
  Status OnCommit(const Call& call, const wire::Commit& request);
  Status OnRelease(const Call& call, const wire::Release& request);
  Status OnPrefetch(const Call& call, const wire::Prefetch& request);
  Status OnLookup(const Call& call, const wire::Lookup& request);
  Status OnPin(const Call& call, const wire::Pin& request);
  Status OnHint(const Call& call, const wire::Hint& request);
  Status OnStats(const Call& call, const wire::Stats& request);
  Status OnPing(const Call& call, const wire::Ping& request);
  Status OnWorkspace(const Call& call, const wire::Workspace& request);
  Status OnWorkspaceClose(const Call& call, const wire::WorkspaceClose& request);
  Status OnAttend(const Call& call, const wire::Attend& request);
  Status OnOpenRegion(const Call& call, const wire::OpenRegion& request);
  Status OnCloseRegion(const Call& call, const wire::CloseRegion& request);
  Status OnStore(const Call& call, const wire::Store& request);
  Status OnLoad(const Call& call, const wire::Load& request);
  Status OnKeepMemory(const Call& call, const wire::KeepMemory& request);
  Status OnTakeMemory(const Call& call, const wire::TakeMemory& request);
  Status OnReleaseMemory(const Call& call, const wire::ReleaseMemory& request);
  Status OnResume(const Call& call, const wire::Resume& request);
  Status OnTokens(const Call& call, const wire::Tokens& request);

  // OnAttach's work. until_ms: when to stop waiting for memory; nothing: it is the first try.
  // Does what a request asks for once `when` has called back, which may be within this call; the
  // client's next request waits for that. Errors: those of `when` and of the work, within this call
  // or as the reply.
  [[nodiscard]] Status After(const std::function<void(std::function<void(Status)>)>& when,
                             wire::MessageType type, const Call& call,
                             std::function<Status()> work);
  [[nodiscard]] Status OpenRegion(const Call& call, const wire::OpenRegion& request,
                                  LentMemory lent);
  [[nodiscard]] Status OpenWorkspace(const Call& call, const wire::Workspace& request);
  [[nodiscard]] Status TryAttach(const Call& call, const wire::Attach& request,
                                 std::optional<int64_t> until_ms);
  // After the cache's `error`: tries again soon if memory is on its way back, else returns it.
  [[nodiscard]] Status AttachLater(const Call& call, const wire::Attach& request,
                                   const Error& error, std::optional<int64_t> until_ms);
  // The pool's memory is ready: only now does the client get its descriptor.
  void OnAttached(const Call& call, const PoolInfo& pool, const AttachedPool& attached);
  // Checks a request for the groups of one model. Errors: those of FindPool; kInvalidArgument
  // "other_model", "group_twice", "group_missing" (hashes are asked for, but not of every group).
  template <typename Part>
  [[nodiscard]] Result<ModelHold> CheckParts(const std::vector<Part>& parts) const;
  // Everything that can be refused before the cache is asked. Errors: those of CheckParts;
  // kLimitExceeded "too_many_blocks", "too_many_hashes"; kInvalidArgument "empty_request";
  // kUnsupported "partial_blocks".
  [[nodiscard]] Status CheckAcquire(const wire::Acquire& request) const;
  // REQUIRES: CheckAcquire passed. The hashes are copied, because an acquire may outlive its frame.
  [[nodiscard]] AcquireRequest ToCache(const Call& call, const wire::Acquire& request,
                                       const wire::Acquire::Part& part) const;
  void AcquireGroups(const Call& call, const wire::Acquire& request);
  // The answer of the cache, for one group or several. It may come after the session has ended, and
  // then only the trace is completed. `wished`: the request says which hits are worth loading, and
  // the answer has the forecast.
  void OnAcquired(const Call& call, Result<std::vector<GroupAcquire::AcquiredPart>> acquired,
                  bool wished);
  // A lookup that takes several turns at the loop, and its state between them.
  struct LookupSteps;
  [[nodiscard]] bool LookUpSome(const std::shared_ptr<LookupSteps>& steps);
  void AskColdStore(const std::shared_ptr<LookupSteps>& steps);
  void AnswerLookup(LookupSteps* steps);
  // As FindPool, if attention is computed there. Errors: also kUnsupported "attend_off".
  [[nodiscard]] Result<const AttachedPool*> FindAttended(PoolId pool) const;
  // Memory shared with the client, on one device. The client can write to it at any time, also
  // while the daemon computes from it: its contents are never trusted, and no addresses are read
  // from it.
  struct SharedWorkspace {
    std::shared_ptr<DevicePool> memory;
    uint32_t device = 0;
  };
  // The request's, on the device of its pool. Errors: kNotFound "unknown_workspace",
  // kInvalidArgument "workspace_other_device".
  [[nodiscard]] Result<std::shared_ptr<DevicePool>> FindWorkspace(
      const wire::Attend& request, const AttachedPool& attached) const;
  void OnAttended(const Call& call, const AttentionJob* job, Result<uint64_t> compute_ns);
  // Called when the session has ended and the results are of no use. Jobs that have begun notice
  // the flag and stop; their memory is kept until then.
  void CancelAttends();
  // A request that names many items is worked on in steps, as large as the turn at the loop allows,
  // and its reply grows with them. Each call works on the next items and returns whether there are
  // more; if not, it has answered.
  template <typename Item, typename ReplyMessage>
  struct Steps {
    Call call;
    PoolId pool;
    std::span<const Item> items;  // those of the frame, which is valid during the call, or `kept`
    ReplyMessage reply;
    uint32_t done = 0;
    std::vector<Item> kept;
  };
  using CommitSteps = Steps<wire::CommitItem, wire::CommitReply>;
  using ReleaseSteps = Steps<BlockHandle, wire::ReleaseReply>;
  using PrefetchSteps = Steps<BlockHash, wire::PrefetchReply>;
  [[nodiscard]] bool CommitSome(CommitSteps* steps);
  [[nodiscard]] bool ReleaseSome(ReleaseSteps* steps);
  [[nodiscard]] bool PrefetchSome(PrefetchSteps* steps);
  // Takes the first step, and sees to it that the others follow.
  template <typename SomeSteps>
  void WorkInSteps(SomeSteps first, bool (Session::*some)(SomeSteps*));
  // The items that the next step works on, `done` of them being done; pays for them. As many as the
  // turn's budget, which is never 0, so that every step makes progress.
  template <typename Item>
  [[nodiscard]] std::span<const Item> NextItems(std::span<const Item> items, size_t done) {
    const std::span<const Item> part =
        items.subspan(done, std::min<size_t>(items.size() - done, connection_.budget()));
    connection_.Spend(part.size());
    return part;
  }
  [[nodiscard]] Status CommitOne(PoolId pool, const AttachedPool& attached,
                                 const wire::CommitItem& item, bool* duplicate);

  // The pool, if this session has attached it. Errors: kNotFound "pool_not_attached";
  // kInvalidArgument "pool_is_region".
  [[nodiscard]] Result<const AttachedPool*> FindPool(PoolId pool) const;
  // The same for what may be a region as well. Errors: kNotFound "pool_not_attached".
  [[nodiscard]] Result<const AttachedPool*> FindPoolOrRegion(PoolId pool) const;
  // Errors: kNotFound "pool_not_attached"; kInvalidArgument "not_a_region".
  [[nodiscard]] Result<const AttachedPool*> FindRegion(PoolId region) const;

  // The memory that the client lends. Errors: kInvalidArgument "no_descriptor",
  // "bad_region_memory".
  [[nodiscard]] Result<LentMemory> TakeLentMemory(const wire::OpenRegion& request);
  // Announces the transfer to the cache; its end is reported to the client. Errors: those of
  // FindRegion and Cache::BeginTransfer; kInvalidArgument "empty_request".
  template <typename Message>
  [[nodiscard]] Status BeginTransfer(const Message& request, const LayerOrder& order);
  // PREFETCH of a region, which an event of the cache answers. REQUIRES: it was checked.
  void PrefetchToHost(const Call& call, const wire::Prefetch& request);
  // The order of a load of a group with so many layers. Errors: kInvalidArgument "bad_counter".
  [[nodiscard]] Result<LayerOrder> OrderOf(const wire::Load& request, uint32_t layers) const;
  void OnTransferred(PoolId region, uint64_t transfer, uint32_t blocks, TransferEnd end);
  // Calls `work(blocks)` with parts of `blocks`, as large as the turns at the loop allow.
  template <typename Block, typename Work>
  void TransferInSteps(std::vector<Block> blocks, Work work);
  // A request that names no block is a client's mistake; answering it with nothing would hide that.
  [[nodiscard]] static Error EmptyRequest();
  // Errors: kLimitExceeded with `reason`.
  [[nodiscard]] Status CheckCount(size_t count, const char* reason) const;
  // Errors: also kInvalidArgument "empty_request".
  [[nodiscard]] Status CheckHashes(std::span<const BlockHash> hashes) const;

  // AttachedPool::held of all pools.
  [[nodiscard]] uint64_t HeldBlocks() const;

  // Under which the next daemon knows this session.
  [[nodiscard]] SessionIdentity Identity() const;

  const SessionId id_;
  const ServiceContext& services_;
  const std::string tenant_;
  const std::function<void(Session*)> on_ended_;
  Peer peer_;
  // Zeros: the session cannot be resumed.
  SessionSecret secret_;
  std::string client_name_;
  bool greeted_ = false;
  bool ended_ = false;
  bool had_private_blocks_ = false;
  // The models that the client registered last, so that it can attach them.
  std::deque<ModelHold> registered_;
  std::unordered_map<PoolId, AttachedPool> pools_;
  uint32_t acquires_in_flight_ = 0;
  uint64_t transfers_in_flight_ = 0;  // blocks, and kTransferPrice for each transfer
  uint64_t region_blocks_ = 0;        // of all regions
  // Made with HELLO, and shared with the client and with the acquires in flight. The client can
  // write to it, so that no value read from it is believed but the one that is the client's to say:
  // when its stores may begin.
  std::shared_ptr<CounterPage> counters_;
  RequestTrace trace_;
  // By their numbers.
  std::unordered_map<uint32_t, SharedWorkspace> workspaces_;
  std::vector<std::shared_ptr<AttentionJob>> attends_;
  Connection connection_;
  LoadEvents load_events_;
  HeldStores held_stores_;
  Timer hello_timeout_;
  // Until the session has ended, of the peer's pidfd.
  std::optional<FdWatch> process_;
  Timer orphaned_;
  // Each runs out when an ATTACH that waits for memory of closed pools is tried again.
  std::list<Timer> attaches_waiting_;
  // Answers of the cache and of attention may come after the session's destruction. The gate is the
  // last member, so that it closes before anything that those callbacks would use is destroyed.
  Gate gate_;
};

}  // namespace kvtier
