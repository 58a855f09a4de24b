// SPDX-License-Identifier: Apache-2.0
// The seam to a store beyond this host: objects by name, which several daemons share. The store
// behind it (a cluster, a server) may be slow, may be gone, and may return any bytes at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvtier {

// Leaves elements as the memory is: to set a block's bytes to zero, in fresh memory with a page
// fault for each 4 KiB, is work for the thread that fills them, not for the event loop.
template <typename T>
struct UnsetAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {  // NOLINT(readability-identifier-naming)
    using other = UnsetAllocator<U>;
  };
  void construct(T* /*element*/) noexcept {}  // NOLINT(readability-identifier-naming)
  template <typename... From>
  void construct(T* element, From&&... from) {  // NOLINT(readability-identifier-naming)
    std::construct_at(element, std::forward<From>(from)...);
  }
};
using ColdObject = std::vector<std::byte, UnsetAllocator<std::byte>>;

// An object's bytes. Shared, because a call that was given up may still read them.
using ColdBytes = std::shared_ptr<const ColdObject>;

// The subject of a question.
enum class ColdAsk : uint8_t {
  kPrefix,  // blocks of one sequence in its order: what follows the first that is absent is of no
            // use
  kEach,    // each object for itself
};

// How an object is written.
struct ColdPut {
  int64_t ttl_s = 0;  // the object is to end by itself after so many seconds; 1 at least
  // Without, an object that is there may be left as it is, and keeps its end.
  bool replaces = true;
};

// The reason of the error with which calls end, unasked, while the store is known to be away.
inline constexpr std::string_view kColdStoreAway = "cold_store_away";
// A kTimeout's reasons. The second says nothing of the store: the call was never sent, or others
// were answered while it waited.
inline constexpr std::string_view kColdStoreLate = "cold_store_late";
inline constexpr std::string_view kColdCallUnsent = "cold_call_unsent";

// Calls return at once and belong to the event loop's thread. Each `done` is called exactly once,
// in a later event on that thread, and at the latest when the call's `timeout_ms` has passed:
// with kTimeout then, whatever becomes of the request. Other errors:
// kUnavailable (no connection), kResourceExhausted (too much is under way already), kIoError (the
// store refused).
// Nothing is called after the store's destruction.
class ColdStore {
 public:
  using ExistsDone = std::function<void(Result<std::vector<bool>>)>;
  using GetDone = std::function<void(Result<ColdBytes>)>;
  using Done = std::function<void(Status)>;
  using DeletedDone = std::function<void(Result<uint64_t>)>;

  virtual ~ColdStore() = default;

  // Whether calls are worth making: false while the store is known to be slow or gone.
  [[nodiscard]] virtual bool Available() = 0;
  // Likewise of puts. A store that takes none may still be read, and deletes.
  [[nodiscard]] virtual bool TakesWrites() { return Available(); }
  // Calls that found no store, or lost it: the one that answers afterwards may be another.
  [[nodiscard]] virtual uint64_t lost_calls() const { return 0; }
  // Which of the objects are there, all of one tenant and model. The answer has one value for each
  // name. A store need not be asked for all of a prefix: an object between two that are there may
  // be told as there, and what follows the first that is absent as absent.
  virtual void Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
                      ExistsDone done) = 0;
  // Error beside those above: kNotFound "cold_object_absent"; kCorrupt "cold_object_size" if it
  // does not have `bytes` bytes.
  virtual void Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) = 0;
  virtual void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms,
                   Done done) = 0;
  // Objects that are not there are no error.
  virtual void Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) = 0;
  // Deletes some of the tenant's objects, of all hosts; `prefix` is what its names begin with
  // (ColdPrefix). `cursor` is 0 at first; the answer is that of the next call, or 0 when none is
  // left of the objects that were there at the first.
  virtual void DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                          DeletedDone done) = 0;
};

}  // namespace kvtier
