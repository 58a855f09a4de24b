// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client/fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <utility>

#include "base/result.h"
#include "protocol/socket_io.h"

namespace kvtier::client {
namespace {

UniqueFd Listen(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVT_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  (void)::unlink(path.c_str());
  KVT_CHECK(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  KVT_CHECK(::listen(fd.get(), 8) == 0);
  return fd;
}

constexpr uint32_t kCounterBytes = 4096;
constexpr Digest128 kSecret{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};

UniqueFd MakeCounters() {
  UniqueFd fd(::memfd_create("fake-counters", MFD_CLOEXEC));
  KVT_CHECK(fd.valid() && ::ftruncate(fd.get(), kCounterBytes) == 0);
  return fd;
}

// Each load has a place of its own, and a base that is near the end of what a u32 holds.
wire::LoadCounter CounterOf(LoadId load, uint32_t steps) {
  return {.offset = static_cast<uint32_t>(load.value) * 64, .base = UINT32_MAX - 1, .steps = steps};
}

bool Is(const wire::Frame& frame, wire::MessageType type) {
  return frame.type == static_cast<uint16_t>(type);
}

}  // namespace

FakeDaemon::FakeDaemon(std::string socket_path, FakeDaemonOptions options)
    : options_(options),
      socket_path_(std::move(socket_path)),
      listener_(Listen(socket_path_)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { Run(); }) {}

FakeDaemon::~FakeDaemon() {
  const uint64_t one = 1;
  KVT_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  (void)::unlink(socket_path_.c_str());
}

void FakeDaemon::Run() {
  while (true) {
    pollfd fds[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    (void)::poll(fds, 2, -1);
    if (fds[1].revents != 0) return;
    Serve(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  }
}

void FakeDaemon::Serve(UniqueFd client) {
  {
    const std::lock_guard lock(mutex_);
    client_ = client.get();
  }
  wire::FrameDecoder decoder;
  while (true) {
    pollfd fds[] = {{client.get(), static_cast<short>(options_.deaf ? 0 : POLLIN), 0},
                    {stop_.get(), POLLIN, 0}};
    (void)::poll(fds, 2, -1);
    if (fds[1].revents != 0) break;
    if (fds[0].revents != 0 && !ReadRequests(client.get(), &decoder)) break;
  }
  const std::lock_guard lock(mutex_);
  client_ = -1;
}

bool FakeDaemon::ReadRequests(int socket, wire::FrameDecoder* decoder) {
  const std::span<std::byte> name_space = decoder->Prepare();
  const auto received = wire::Receive(socket, name_space, &descriptors_);
  if (!received) return false;
  if (!*received) return true;
  if (**received == 0) return false;
  decoder->Commit(**received);
  while (true) {
    const auto frame = decoder->Next();
    KVT_CHECK(frame.has_value());
    if (!*frame) return true;
    const std::lock_guard lock(mutex_);
    std::optional<Bytes> instead;
    if (interceptor_) instead = interceptor_(**frame);
    if (instead) {
      SendLocked(*instead);
    } else {
      Answer(**frame);
    }
    ++counts_[(*frame)->type];
    received_.notify_all();
  }
}

void FakeDaemon::Answer(const wire::Frame& frame) {
  if (Is(frame, wire::MessageType::kHello)) {
    counters_ = MakeCounters();
    SendLocked(FrameOf(wire::HelloReply{.session = SessionId{lives_ + 1},
                                        .daemon_generation = options_.generation + lives_,
                                        .max_hashes = options_.max_hashes,
                                        .max_blocks = options_.max_blocks,
                                        .max_references = 1 << 20,
                                        .tenant = "default",
                                        .secret = options_.keeps ? kSecret : Digest128{}},
                       frame.request_id),
               counters_.get());
  } else if (Is(frame, wire::MessageType::kRegisterModel)) {
    const ModelRecord record = wire::Decode<wire::RegisterModel>(frame.payload)->record;
    wire::RegisterModelReply reply{.model = wire::ModelId{7}, .groups = {}};
    for (uint32_t i = 0; i < record.groups.size(); ++i) {
      reply.groups.push_back({record.GroupFingerprint(i), record.groups[i].BlockBytes()});
    }
    block_bytes_ = reply.groups[0].block_bytes;
    Reply(frame, reply);
  } else if (Is(frame, wire::MessageType::kAttach)) {
    AnswerAttach(frame);
  } else if (Is(frame, wire::MessageType::kOpenRegion)) {
    AnswerOpenRegion(frame);
  } else if (Is(frame, wire::MessageType::kCloseRegion)) {
    Reply(frame, wire::CloseRegionReply{});
  } else if (Is(frame, wire::MessageType::kWorkspace)) {
    AnswerWorkspace(frame);
  } else if (Is(frame, wire::MessageType::kStats)) {
    Reply(frame, wire::StatsReply{.blocks_asked = 10, .blocks_pool = 1, .session_references = 3});
  } else if (Is(frame, wire::MessageType::kDevices)) {
    Reply(frame, wire::DevicesReply{{{.name = "host"}}});
  } else if (Is(frame, wire::MessageType::kPing)) {
    Reply(frame, wire::Pong{});
  } else {
    AnswerBlocks(frame);
  }
}

void FakeDaemon::AnswerBlocks(const wire::Frame& frame) {
  const bool want_reply = (frame.flags & wire::kFlagWantReply) != 0;
  if (Is(frame, wire::MessageType::kAcquire)) {
    AnswerAcquire(frame);
  } else if (Is(frame, wire::MessageType::kCommit)) {
    const wire::CommitReply reply = cache_->Commit(*wire::Decode<wire::Commit>(frame.payload));
    if (want_reply || !reply.items.empty()) Reply(frame, reply);
  } else if (Is(frame, wire::MessageType::kRelease)) {
    const wire::ReleaseReply reply = cache_->Release(*wire::Decode<wire::Release>(frame.payload));
    if (want_reply || !reply.errors.empty()) Reply(frame, reply);
  } else if (Is(frame, wire::MessageType::kResume)) {
    AnswerResume(frame);
  } else if (Is(frame, wire::MessageType::kLookup)) {
    wire::LookupReply reply;
    const auto request = wire::Decode<wire::Lookup>(frame.payload);
    for (const BlockHash& hash : request->hashes) {
      reply.presence.push_back(cache_->Holds(hash) ? wire::kPresentInPool : 0);
    }
    Reply(frame, reply);
  } else if (Is(frame, wire::MessageType::kPrefetch)) {
    const auto count = wire::Decode<wire::Prefetch>(frame.payload)->hashes.size();
    Reply(frame, wire::PrefetchReply{static_cast<uint32_t>(count)});
  } else if (Is(frame, wire::MessageType::kKeepMemory) ||
             Is(frame, wire::MessageType::kTakeMemory) ||
             Is(frame, wire::MessageType::kReleaseMemory)) {
    AnswerKeptMemory(frame);
  } else if (Is(frame, wire::MessageType::kPin)) {
    const auto count = wire::Decode<wire::Pin>(frame.payload)->hashes.size();
    Reply(frame, wire::PinReply{static_cast<uint32_t>(count)});
  } else if (Is(frame, wire::MessageType::kHint)) {
    const auto count = wire::Decode<wire::Hint>(frame.payload)->hashes.size();
    Reply(frame, wire::HintReply{static_cast<uint32_t>(count)});
  } else if (Is(frame, wire::MessageType::kTokens)) {
    AnswerTokens(frame);
  }
}

void FakeDaemon::AnswerTokens(const wire::Frame& frame) {
  if (!options_.token_ids) {
    return Reply(frame, wire::ErrorReply{{ErrorCode::kUnsupported, "unknown_message", "fake"}});
  }
  const auto tokens = wire::Decode<wire::Tokens>(frame.payload);
  std::span<const uint32_t> rest = tokens->ids;
  for (const wire::Tokens::Block& block : tokens->blocks) {
    const auto ids = rest.first(block.tokens);
    rest = rest.subspan(block.tokens);
    token_ids_[block.hash].assign(ids.begin(), ids.end());
  }
  if ((frame.flags & wire::kFlagWantReply) != 0) {
    Reply(frame, wire::TokensReply{true, static_cast<uint32_t>(tokens->blocks.size())});
  }
}

std::map<BlockHash, std::vector<uint32_t>> FakeDaemon::TokenIds() {
  const std::lock_guard lock(mutex_);
  return token_ids_;
}

void FakeDaemon::AnswerResume(const wire::Frame& frame) {
  const auto request = wire::Decode<wire::Resume>(frame.payload);
  if (request->secret != kSecret || resumed_.contains(request->session)) {
    return Reply(frame,
                 wire::ErrorReply{{ErrorCode::kPermissionDenied, "unknown_session", "fake"}});
  }
  wire::ResumeReply reply;
  for (const ResumeClaim& claim : request->claims) {
    reply.outcomes.push_back(cache_->OutcomeOf(claim.block));
  }
  if (!request->more) resumed_.insert(request->session);
  Reply(frame, reply);
}

void FakeDaemon::AnswerAttach(const wire::Frame& frame) {
  if (!cache_) cache_ = std::make_unique<FakeCache>(block_bytes_, options_.blocks);
  const uint64_t pool_bytes = block_bytes_ * options_.blocks;
  const Bytes bytes = FrameOf(wire::AttachReply{.pool = PoolId{3},
                                                .generation = options_.generation,
                                                .pool_bytes = pool_bytes,
                                                .block_bytes = block_bytes_,
                                                .blocks = options_.blocks,
                                                .device_kind = options_.device_kind},
                              frame.request_id);
  if (options_.short_pool) {
    const FakeCache small(block_bytes_, options_.blocks - 1);
    SendLocked(bytes, small.fd());
  } else {
    SendLocked(bytes, cache_->fd());
  }
}

void FakeDaemon::AnswerWorkspace(const wire::Frame& frame) {
  const auto request = wire::Decode<wire::Workspace>(frame.payload);
  const UniqueFd memory(::memfd_create("fake-workspace", MFD_CLOEXEC));
  KVT_CHECK(memory.valid() && ::ftruncate(memory.get(), static_cast<off_t>(request->bytes)) == 0);
  SendLocked(
      FrameOf(wire::WorkspaceReply{request->bytes, wire::DeviceKind::kHost}, frame.request_id),
      memory.get());
}

void FakeDaemon::AnswerOpenRegion(const wire::Frame& frame) {
  const auto request = wire::Decode<wire::OpenRegion>(frame.payload);
  if (!request) return Reply(frame, wire::ErrorReply{request.error()});
  if (request->memory != wire::RegionMemory::kCudaIpc) {
    if (descriptors_.empty()) {
      return Reply(frame,
                   wire::ErrorReply{{ErrorCode::kInvalidArgument, "no_descriptor", "none came"}});
    }
    region_memory_ = std::move(descriptors_.front());
    descriptors_.erase(descriptors_.begin());
  }
  Reply(frame, wire::OpenRegionReply{.region = PoolId{5}, .block_bytes = block_bytes_});
}

void FakeDaemon::Done(const wire::TransferDone& done) { Send(FrameOf(done, 0)); }

std::vector<std::byte> FakeDaemon::RegionMemory() {
  const std::lock_guard lock(mutex_);
  struct stat status {};
  if (!region_memory_.valid() || ::fstat(region_memory_.get(), &status) != 0) return {};
  Bytes bytes(static_cast<size_t>(status.st_size));
  KVT_CHECK(::pread(region_memory_.get(), bytes.data(), bytes.size(), 0) == status.st_size);
  return bytes;
}

void FakeDaemon::AnswerAcquire(const wire::Frame& frame) {
  const auto request = wire::Decode<wire::Acquire>(frame.payload);
  auto reply = cache_->Acquire(request->parts.at(0), request->wish);
  if (!reply) return Reply(frame, wire::ErrorReply{reply.error()});
  if (options_.counters && reply->load.value != 0) {
    const bool in_layers = request->order == wire::LoadOrder::kLayers;
    reply->counter = CounterOf(
        reply->load, in_layers ? options_.layers : static_cast<uint32_t>(reply->hits.size()));
    WriteCounter(*reply->counter, 0);
  }
  Reply(frame, wire::AcquireReply{.parts = {*reply}});
}

void FakeDaemon::WriteCounter(const wire::LoadCounter& counter, uint32_t done) {
  const uint32_t value = counter.base + done;
  KVT_CHECK(::pwrite(counters_.get(), &value, sizeof(value), counter.offset) == sizeof(value));
}

void FakeDaemon::Count(LoadId load, uint32_t done) {
  const std::lock_guard lock(mutex_);
  cache_->Load(load, done);
  WriteCounter(CounterOf(load, 1), done);
}

void FakeDaemon::Count(const wire::LoadCounter& counter, uint32_t done) {
  const std::lock_guard lock(mutex_);
  WriteCounter(counter, done);
}

void FakeDaemon::SendLocked(const Bytes& bytes, int descriptor, int second) {
  std::vector<int> descriptors = {descriptor, second};
  std::erase(descriptors, -1);
  std::span<const std::byte> rest = bytes;
  while (!rest.empty() && client_ >= 0) {
    const auto sent = wire::Send(client_, rest, descriptors);
    if (!sent) return;
    if (!*sent) {
      pollfd fd{client_, POLLOUT, 0};
      (void)::poll(&fd, 1, -1);
      continue;
    }
    rest = rest.subspan(**sent);
    descriptors.clear();
  }
}

void FakeDaemon::AnswerKeptMemory(const wire::Frame& frame) {
  if (refuse_kept_memory_) {
    descriptors_.clear();
    return Reply(frame, wire::ErrorReply{{ErrorCode::kWrongState, "memory_in_use", "by another"}});
  }
  if (Is(frame, wire::MessageType::kKeepMemory)) {
    const auto request = wire::Decode<wire::KeepMemory>(frame.payload).value();
    KVT_CHECK(descriptors_.size() == 2);
    kept_[request.name] = {request, std::move(descriptors_[0]), std::move(descriptors_[1])};
    descriptors_.clear();
    return Reply(frame, wire::KeepMemoryReply{});
  }
  if (Is(frame, wire::MessageType::kReleaseMemory)) {
    const auto request = wire::Decode<wire::ReleaseMemory>(frame.payload).value();
    wire::ReleaseMemoryReply reply;
    std::erase_if(kept_, [&](const auto& item) {
      if (request.name && item.first != *request.name) return false;
      ++reply.released;
      reply.released_bytes += item.second.message.bytes;
      return true;
    });
    return Reply(frame, reply);
  }
  const auto request = wire::Decode<wire::TakeMemory>(frame.payload).value();
  const auto found = kept_.find(request.name);
  if (found == kept_.end()) return Reply(frame, wire::TakeMemoryReply{});
  const Kept& kept = found->second;
  SendLocked(FrameOf(wire::TakeMemoryReply{.found = true,
                                           .memory = kept.message.memory,
                                           .device = kept.message.device,
                                           .bytes = request.table_only ? 0 : kept.message.bytes,
                                           .table_bytes = kept.message.table_bytes},
                     frame.request_id),
             request.table_only ? -1 : kept.memory.get(), kept.table.get());
}

void FakeDaemon::RefuseKeptMemory(bool refuse) {
  const std::lock_guard lock(mutex_);
  refuse_kept_memory_ = refuse;
}

void FakeDaemon::WithKept(const std::function<void(std::map<wire::KeptMemoryName, Kept>*)>& body) {
  const std::lock_guard lock(mutex_);
  body(&kept_);
}

void FakeDaemon::DropClient() {
  const std::lock_guard lock(mutex_);
  if (client_ >= 0) (void)::shutdown(client_, SHUT_RDWR);
}

void FakeDaemon::DieAndAdopt() {
  const std::lock_guard lock(mutex_);
  DieAndAdoptLocked();
}

void FakeDaemon::DieAndAdoptLocked() {
  ++lives_;
  resumed_.clear();
  if (client_ >= 0) (void)::shutdown(client_, SHUT_RDWR);
}

void FakeDaemon::Intercept(Interceptor interceptor) {
  const std::lock_guard lock(mutex_);
  interceptor_ = std::move(interceptor);
}

void FakeDaemon::HoldBack(wire::MessageType type) {
  Intercept([this, type](const wire::Frame& frame) -> std::optional<Bytes> {
    if (!Is(frame, type)) return std::nullopt;
    held_back_ = frame.request_id;
    return Bytes();
  });
}

uint64_t FakeDaemon::WaitForHeldBack() {
  std::unique_lock lock(mutex_);
  received_.wait(lock, [&] { return held_back_.has_value(); });
  return *std::exchange(held_back_, std::nullopt);
}

void FakeDaemon::Progress(LoadId load, uint32_t ready, bool finished, uint8_t miss_reason) {
  const std::lock_guard lock(mutex_);
  cache_->Load(load, ready);
  SendLocked(FrameOf(
      wire::LoadProgress{{load, ready, finished, static_cast<MissReason>(miss_reason)}}, 0));
}

void FakeDaemon::Send(const Bytes& bytes) {
  const std::lock_guard lock(mutex_);
  SendLocked(bytes);
}

void FakeDaemon::WithCache(const std::function<void(FakeCache*)>& body) {
  const std::lock_guard lock(mutex_);
  body(cache_.get());
}

void FakeDaemon::WaitForRequests(wire::MessageType type, int count) {
  std::unique_lock lock(mutex_);
  received_.wait(lock, [&] { return counts_[static_cast<uint16_t>(type)] >= count; });
}

int FakeDaemon::Requests(wire::MessageType type) {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<uint16_t>(type)];
}

int FakeDaemon::requests() {
  const std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [type, count] : counts_) sum += count;
  return sum;
}

uint32_t FakeDaemon::references() {
  const std::lock_guard lock(mutex_);
  return cache_->references();
}

}  // namespace kvtier::client
