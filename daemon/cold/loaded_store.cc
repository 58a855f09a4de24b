// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/loaded_store.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

using std::chrono::steady_clock;

// Calls whose ends one event tells, so that it takes no longer than others.
constexpr size_t kEndsOfEvent = 16;
// Kept for gets to come, as much as a load has under way most of the time.
constexpr uint64_t kMaxKeptBytes = 32 * kMiB;

std::vector<kvt_cold_name> Views(std::span<const std::string> names) {
  std::vector<kvt_cold_name> views;
  views.reserve(names.size());
  for (const std::string& name : names) views.push_back({name.data(), name.size()});
  return views;
}

uint64_t BytesOf(std::span<const std::string> names) {
  uint64_t bytes = 0;
  for (const std::string& name : names) bytes += name.size();
  return bytes;
}

Result<const kvt_cold_backend*> OpenBackend(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const why = ::dlerror();
    return MakeError(ErrorCode::kUnavailable, "cold_library",
                     why == nullptr ? library + " cannot be opened" : why);
  }
  const auto find =
      reinterpret_cast<decltype(&kvt_cold_backend_table)>(::dlsym(opened, KVT_COLD_SYMBOL));
  const kvt_cold_backend* const backend = find == nullptr ? nullptr : find(KVT_COLD_ABI);
  if (backend == nullptr || backend->abi != KVT_COLD_ABI ||
      backend->table_bytes != sizeof(kvt_cold_backend)) {
    return MakeError(ErrorCode::kUnavailable, "cold_library",
                     library + " is no library for cold stores of this version");
  }
  return backend;
}

Error ErrorOf(int status, std::span<const std::byte> why) {
  const std::string text(reinterpret_cast<const char*>(why.data()), why.size());
  switch (status) {
    case KVT_COLD_ABSENT:
      return {ErrorCode::kNotFound, "cold_object_absent", text};
    case KVT_COLD_REFUSED:
      return {ErrorCode::kIoError, "cold_store_refused", text};
    case KVT_COLD_BUSY:
      return {ErrorCode::kResourceExhausted, "cold_store_busy", text};
    case KVT_COLD_LATE:
      return {ErrorCode::kTimeout, std::string(kColdStoreLate), text};
    case KVT_COLD_UNSENT:
      return {ErrorCode::kTimeout, std::string(kColdCallUnsent), text};
    default:
      return {ErrorCode::kUnavailable, "cold_store_unreachable", text};
  }
}

}  // namespace

Status LoadedStore::CheckLibrary(const std::string& library) {
  KVT_RETURN_IF_ERROR(OpenBackend(library));
  return {};
}

// The library stays open until the process ends: its threads' last instructions lie in it.
Result<std::unique_ptr<LoadedStore>> LoadedStore::Open(const LoadedStoreOptions& options,
                                                       EventLoop* loop) {
  KVT_ASSIGN_OR_RETURN(const kvt_cold_backend* const backend, OpenBackend(options.library));
  std::unique_ptr<LoadedStore> store(new LoadedStore(backend, options, loop));
  const kvt_cold_config config{.endpoint = options.endpoint.c_str(),
                               .user = options.user.c_str(),
                               .password = options.password.c_str(),
                               .password_file = options.password_file.c_str(),
                               .max_bytes = options.max_bytes};
  store->store_ = backend->open(&config, &LoadedStore::OnDone, store.get());
  if (store->store_ == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "cold_endpoint",
                     options.endpoint + " is no endpoint of a cold store");
  }
  return store;
}

LoadedStore::LoadedStore(const kvt_cold_backend* backend, const LoadedStoreOptions& options,
                         EventLoop* loop)
    : backend_(*backend),
      max_bytes_(options.max_bytes_in_flight),
      on_unswept_(options.on_unswept),
      loop_(*loop),
      buffers_(kMaxKeptBytes),
      first_deadline_(loop),
      pass_(gate_.MakePass()) {}

LoadedStore::~LoadedStore() {
  if (store_ == nullptr || backend_.close(store_) == 1) return;
  auto kept = std::make_unique<std::vector<std::shared_ptr<const void>>>();
  for (auto& [number, call] : calls_) kept->push_back(std::move(call.memory));
  (void)kept.release();
}

uint64_t LoadedStore::Begin(Kind kind, uint64_t bytes, int64_t timeout_ms, Ended ended,
                            std::shared_ptr<const void> memory) {
  if (bytes_ + bytes > max_bytes_()) {
    loop_.Post(gate_.WhileOpen([ended = std::move(ended)] {
      ended(MakeError(ErrorCode::kResourceExhausted, "cold_store_busy"));
    }));
    return 0;
  }
  const uint64_t number = next_call_++;
  bytes_ += bytes;
  const Time deadline = steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  calls_[number] = {.ended = std::move(ended),
                    .kind = kind,
                    .answers_before = answers_[static_cast<size_t>(kind)],
                    .unsent_before = unsent_[static_cast<size_t>(kind)],
                    .bytes = bytes,
                    .memory = std::move(memory),
                    .deadline = deadline};
  deadlines_.emplace(deadline, number);
  AwaitDeadline();
  return number;
}

// One timer for all calls: most end before they are late, and it costs more than the rest of a
// call to start one for each.
void LoadedStore::AwaitDeadline() {
  if (deadlines_.empty()) return;
  const Time first = deadlines_.begin()->first;
  if (first_deadline_.running() && wakes_at_ <= first) return;
  wakes_at_ = first;
  const auto wait = std::chrono::ceil<std::chrono::microseconds>(first - steady_clock::now());
  first_deadline_.StartUs(std::max<int64_t>(wait.count(), 0), [this] { EndLate(); });
}

// One in each event, because a caller may do anything when it hears of it. Ends that the library
// has told come first: while the loop was busy, they were not late. Where the store has answered
// others meanwhile and the library has left some unsent, this one stood in a queue, too. A store
// that is slow by itself leaves none unsent, and one that hangs answers none.
void LoadedStore::EndLate() {
  const Gate::Pass pass = pass_;
  EndTold();
  if (!pass.open()) return;
  Ended late;
  bool is_store_late = false;
  if (const auto first = deadlines_.begin();
      first != deadlines_.end() && first->first <= steady_clock::now()) {
    Call& call = calls_.at(first->second);
    const auto kind = static_cast<size_t>(call.kind);
    is_store_late = call.answers_before == answers_[kind] || call.unsent_before == unsent_[kind];
    late = std::exchange(call.ended, nullptr);
    deadlines_.erase(first);
  }
  AwaitDeadline();
  const std::string_view why = is_store_late ? kColdStoreLate : kColdCallUnsent;
  if (late) late(MakeError(ErrorCode::kTimeout, std::string(why)));
}

// On a thread of the library. Ends that come before the loop has got to them share an event.
void LoadedStore::OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                         int more) {
  auto* const self = static_cast<LoadedStore*>(context);
  Told told{.call = call, .status = status, .answer = {.data = {}, .bytes = bytes}};
  if (const auto* const begin = static_cast<const std::byte*>(data)) {
    told.answer.data.assign(begin, begin + bytes);
  }
  {
    const std::lock_guard lock(self->mutex_);
    self->told_.push_back(std::move(told));
    if (more == 1 || std::exchange(self->will_end_told_, true)) return;
  }
  self->PostEndTold();
}

void LoadedStore::PostEndTold() {
  loop_.Post([this, pass = pass_] {
    if (pass.open()) EndTold();
  });
}

// A caller may destroy the store when it hears of an end.
void LoadedStore::EndTold() {
  std::deque<Told> told;
  bool is_more = false;
  {
    const std::lock_guard lock(mutex_);
    const auto end = told_.begin() + static_cast<long>(std::min(told_.size(), kEndsOfEvent));
    told.assign(std::move_iterator(told_.begin()), std::move_iterator(end));
    told_.erase(told_.begin(), end);
    is_more = will_end_told_ = !told_.empty();
  }
  if (is_more) PostEndTold();
  for (const Gate::Pass pass = pass_; !told.empty() && pass.open(); told.pop_front()) {
    End(std::move(told.front()));
  }
}

void LoadedStore::End(Told told) {
  if (told.call == KVT_COLD_NO_CALL && on_unswept_) {
    return on_unswept_(ErrorOf(told.status, told.answer.data).context);
  }
  const auto found = calls_.find(told.call);
  // A library that ends a call twice is not believed the second time.
  if (found == calls_.end()) return;
  const bool is_answer = told.status == KVT_COLD_OK || told.status == KVT_COLD_ABSENT ||
                         told.status == KVT_COLD_REFUSED;
  answers_[static_cast<size_t>(found->second.kind)] += is_answer ? 1 : 0;
  unsent_[static_cast<size_t>(found->second.kind)] += told.status == KVT_COLD_UNSENT ? 1 : 0;
  const Ended ended = std::move(found->second.ended);
  bytes_ -= found->second.bytes;
  deadlines_.erase({found->second.deadline, told.call});
  calls_.erase(found);
  if (!ended) return;
  if (told.status == KVT_COLD_OK) {
    ended(std::move(told.answer));
  } else {
    ended(tl::unexpected(ErrorOf(told.status, told.answer.data)));
  }
}

void LoadedStore::Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
                         ExistsDone done) {
  const size_t count = names.size();
  const auto ended = [count, done = std::move(done)](const Result<Answer>& got) {
    if (!got) return done(tl::unexpected(got.error()));
    if (got->data.size() != count) return done(MakeError(ErrorCode::kIoError, "bad_answer"));
    std::vector<bool> present;
    for (const std::byte byte : got->data) present.push_back(byte != std::byte{0});
    done(std::move(present));
  };
  const uint64_t call = Begin(Kind::kExists, BytesOf(names), timeout_ms, ended);
  if (call == 0) return;
  const int each = ask == ColdAsk::kEach ? 1 : 0;
  backend_.exists(store_, call, Views(names).data(), count, each, timeout_ms);
  SendSoon();
}

// The buffer goes on from the library to the caller without a copy of its bytes.
void LoadedStore::Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) {
  const std::shared_ptr<ColdObject> into = buffers_.Take(bytes + 1);
  const uint64_t call = Begin(
      Kind::kGet, bytes, timeout_ms,
      [bytes, into, done = std::move(done)](const Result<Answer>& got) {
        if (!got) return done(tl::unexpected(got.error()));
        if (got->bytes != bytes) return done(MakeError(ErrorCode::kCorrupt, "cold_object_size"));
        into->resize(bytes);
        done(into);
      },
      into);
  if (call == 0) return;
  backend_.get(store_, call, {name.data(), name.size()}, into->data(), bytes, timeout_ms);
  SendSoon();
}

void LoadedStore::Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms,
                      Done done) {
  const uint64_t call =
      Begin(Kind::kPut, bytes->size(), timeout_ms, WithoutBytes(std::move(done)), bytes);
  if (call == 0) return;
  backend_.put(store_, call, {name.data(), name.size()}, bytes->data(), bytes->size(), how.ttl_s,
               how.replaces ? 1 : 0, timeout_ms);
  SendSoon();
}

void LoadedStore::Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) {
  const uint64_t call =
      Begin(Kind::kDelete, BytesOf(names), timeout_ms, WithoutBytes(std::move(done)));
  if (call == 0) return;
  backend_.remove(store_, call, Views(names).data(), names.size(), timeout_ms);
  SendSoon();
}

// Not refused for the bytes under way: a busy store is one where a put may come.
void LoadedStore::DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                             DeletedDone done) {
  const uint64_t call =
      Begin(Kind::kDelete, 0, timeout_ms, [done = std::move(done)](const Result<Answer>& got) {
        if (!got) return done(tl::unexpected(got.error()));
        uint64_t next = 0;
        if (got->data.size() != sizeof(next)) {
          return done(MakeError(ErrorCode::kIoError, "bad_answer"));
        }
        std::memcpy(&next, got->data.data(), sizeof(next));
        done(next);
      });
  if (call == 0) return;
  backend_.remove_some(store_, call, {prefix.data(), prefix.size()}, cursor, timeout_ms);
  SendSoon();
}

// Calls that an event makes are sent together at its end.
void LoadedStore::SendSoon() {
  if (std::exchange(sends_soon_, true)) return;
  loop_.RunAfterEvent(gate_.WhileOpen([this] {
    sends_soon_ = false;
    backend_.send(store_);
  }));
}

LoadedStore::Ended LoadedStore::WithoutBytes(Done done) {
  return [done = std::move(done)](const Result<Answer>& got) {
    done(got ? Status() : Status(tl::unexpected(got.error())));
  };
}

}  // namespace kvtier
