// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/loaded_store.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace kvtier {
namespace {

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
    default:
      return {ErrorCode::kUnavailable, "cold_store_unreachable", text};
  }
}

}  // namespace

// The library stays open until the process ends: its threads' last instructions lie in it.
Result<std::unique_ptr<LoadedStore>> LoadedStore::Open(const LoadedStoreOptions& options,
                                                       EventLoop* loop) {
  KVT_ASSIGN_OR_RETURN(const kvt_cold_backend* const backend, OpenBackend(options.library));
  std::unique_ptr<LoadedStore> store(new LoadedStore(backend, options.max_bytes_in_flight, loop));
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

LoadedStore::LoadedStore(const kvt_cold_backend* backend, uint64_t max_bytes, EventLoop* loop)
    : backend_(*backend),
      max_bytes_(max_bytes),
      loop_(*loop),
      buffers_(std::min(max_bytes, kMaxKeptBytes)),
      pass_(gate_.MakePass()) {}

LoadedStore::~LoadedStore() {
  if (store_ == nullptr || backend_.close(store_) == 1) return;
  auto kept = std::make_unique<std::vector<std::shared_ptr<const void>>>();
  for (auto& [number, call] : calls_) kept->push_back(std::move(call.memory));
  (void)kept.release();
}

uint64_t LoadedStore::Begin(uint64_t bytes, int64_t timeout_ms, Ended ended,
                            std::shared_ptr<const void> memory) {
  if (bytes_ + bytes > max_bytes_) {
    loop_.Post(gate_.WhileOpen([ended = std::move(ended)] {
      ended(MakeError(ErrorCode::kResourceExhausted, "cold_store_busy"));
    }));
    return 0;
  }
  const uint64_t number = next_call_++;
  bytes_ += bytes;
  Call& call = calls_[number];
  call = {.ended = std::move(ended),
          .bytes = bytes,
          .memory = std::move(memory),
          .deadline = std::make_unique<Timer>(&loop_)};
  call.deadline->Start(timeout_ms, [this, number] {
    const Ended late = std::exchange(calls_.at(number).ended, nullptr);
    late(MakeError(ErrorCode::kTimeout, "cold_store_late"));
  });
  return number;
}

// On a thread of the library.
void LoadedStore::OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes) {
  auto* const self = static_cast<LoadedStore*>(context);
  Answer answer{.data = {}, .bytes = bytes};
  if (const auto* const begin = static_cast<const std::byte*>(data)) {
    answer.data.assign(begin, begin + bytes);
  }
  self->loop_.Post([self, pass = self->pass_, call, status, answer = std::move(answer)]() mutable {
    if (pass.open()) self->End(call, status, std::move(answer));
  });
}

void LoadedStore::End(uint64_t number, int status, Answer answer) {
  const auto found = calls_.find(number);
  // A library that ends a call twice is not believed the second time.
  if (found == calls_.end()) return;
  const Ended ended = std::move(found->second.ended);
  bytes_ -= found->second.bytes;
  calls_.erase(found);
  if (!ended) return;
  if (status == KVT_COLD_OK) {
    ended(std::move(answer));
  } else {
    ended(tl::unexpected(ErrorOf(status, answer.data)));
  }
}

void LoadedStore::Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
                         ExistsDone done) {
  const size_t count = names.size();
  const uint64_t call =
      Begin(BytesOf(names), timeout_ms, [count, done = std::move(done)](const Result<Answer>& got) {
        if (!got) return done(tl::unexpected(got.error()));
        if (got->data.size() != count) return done(MakeError(ErrorCode::kIoError, "bad_answer"));
        std::vector<bool> present;
        for (const std::byte byte : got->data) present.push_back(byte != std::byte{0});
        done(std::move(present));
      });
  if (call == 0) return;
  const int each = ask == ColdAsk::kEach ? 1 : 0;
  backend_.exists(store_, call, Views(names).data(), count, each, timeout_ms);
}

// The buffer goes on from the library to the caller without a copy of its bytes.
void LoadedStore::Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) {
  const std::shared_ptr<Bytes> into = buffers_.Take(bytes + 1);
  const uint64_t call = Begin(
      bytes, timeout_ms,
      [bytes, into, done = std::move(done)](const Result<Answer>& got) {
        if (!got) return done(tl::unexpected(got.error()));
        if (got->bytes != bytes) return done(MakeError(ErrorCode::kCorrupt, "cold_object_size"));
        into->resize(bytes);
        done(into);
      },
      into);
  if (call == 0) return;
  backend_.get(store_, call, {name.data(), name.size()}, into->data(), bytes, timeout_ms);
}

void LoadedStore::Put(std::string name, ColdBytes bytes, int64_t ttl_s, int64_t timeout_ms,
                      Done done) {
  const uint64_t call = Begin(bytes->size(), timeout_ms, WithoutBytes(std::move(done)), bytes);
  if (call == 0) return;
  backend_.put(store_, call, {name.data(), name.size()}, bytes->data(), bytes->size(), ttl_s,
               timeout_ms);
}

void LoadedStore::Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) {
  const uint64_t call = Begin(BytesOf(names), timeout_ms, WithoutBytes(std::move(done)));
  if (call == 0) return;
  backend_.remove(store_, call, Views(names).data(), names.size(), timeout_ms);
}

void LoadedStore::DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                             DeletedDone done) {
  const uint64_t call =
      Begin(prefix.size(), timeout_ms, [done = std::move(done)](const Result<Answer>& got) {
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
}

LoadedStore::Ended LoadedStore::WithoutBytes(Done done) {
  return [done = std::move(done)](const Result<Answer>& got) {
    done(got ? Status() : Status(tl::unexpected(got.error())));
  };
}

}  // namespace kvtier
