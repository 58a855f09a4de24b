// SPDX-License-Identifier: Apache-2.0
// Descriptors of memory that outlive this process: a holder outside of it keeps duplicates and
// hands them to the next daemon. While one is open anywhere, the memory stays as it is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "daemon/runtime/event_loop.h"
#include "daemon/runtime/log.h"

namespace kvtier {

// The names in use. A name has at most kMaxKeptNameBytes (keeper_protocol.h).
inline constexpr std::string_view kHostArenaName = "host-arena";
inline constexpr std::string_view kHostTableName = "host-table";
inline constexpr std::string_view kDiskKeysName = "disk-keys";

// Event loop only, or the time before it runs. Take waits for the holder, for two seconds at most
// and microseconds as a rule; it belongs to the start. No other call waits.
//
// A holder never makes a daemon fail: what cannot be kept is in the log, and the daemon serves.
class DescriptorStore {
 public:
  // For status and metrics.
  struct Entry {
    std::string name;
    uint64_t bytes = 0;
  };
  struct Holder {
    std::string name;  // "systemd", "kvtier-keeper" or "none"
    int32_t pid = 0;   // of the keeper, while it runs
    std::string until;
    std::string reason;  // of "none"
  };

  virtual ~DescriptorStore() = default;
  DescriptorStore(const DescriptorStore&) = delete;
  DescriptorStore& operator=(const DescriptorStore&) = delete;

  // The descriptor that an earlier daemon left under the name; at most once, and nothing after
  // Keep. The holder has it until Keep replaces it, so that a daemon that dies in between loses
  // nothing.
  [[nodiscard]] std::optional<UniqueFd> Take(std::string_view name);
  // Has a duplicate of the descriptor kept over this process's end, in place of the one that has
  // that name. `bytes` is the memory behind it, for people; 0: the size of the file.
  // Errors: kUnavailable "nothing_keeps"; kResourceExhausted "descriptors" or "keeper_full".
  [[nodiscard]] Status Keep(std::string_view name, int descriptor, uint64_t bytes = 0);
  // The memory behind a descriptor that is kept has another size now.
  void NoteBytes(std::string_view name, uint64_t bytes);
  void Release(std::string_view name);
  // Everything that an earlier daemon left and this one has neither taken nor kept.
  virtual void ReleaseUnclaimed() {}
  // Everything; a keeper ends. Nothing is kept from then on.
  void ReleaseAll();

  [[nodiscard]] std::vector<Entry> entries() const;
  // Whether memory is to outlive this process: what Keep is given is held as soon as there is a
  // holder, though there may be none at the moment. The same for the store's life.
  [[nodiscard]] virtual bool keeps() const { return true; }
  // The holder of the moment.
  [[nodiscard]] virtual Holder holder() const = 0;

 protected:
  // Shared with threads that hand them to another holder.
  using Descriptor = std::shared_ptr<const UniqueFd>;
  struct Kept {
    Descriptor descriptor;
    uint64_t bytes = 0;
  };
  using KeptByName = std::map<std::string, Kept, std::less<>>;

  DescriptorStore() = default;
  // The holder's operations. None is called for a name twice, and none after DoReleaseAll.
  virtual std::optional<UniqueFd> DoTake(std::string_view name) = 0;
  [[nodiscard]] virtual Status DoKeep(const std::string& name, const Descriptor& descriptor) = 0;
  virtual void DoRelease(std::string_view name) = 0;
  virtual void DoReleaseAll() = 0;
  [[nodiscard]] const KeptByName& kept() const { return kept_; }

 private:
  // Duplicates: a kept descriptor outlives its owner also in this process.
  KeptByName kept_;
  std::set<std::string, std::less<>> taken_;  // or released
  bool released_ = false;
};

struct DescriptorStoreOptions {
  // The socket of the daemon's clients: the keeper's is beside it.
  std::string socket;
  // How long a keeper waits for the next daemon; 0: nothing is kept, and what an earlier daemon
  // left is given back.
  int64_t keep_for_ms = 0;
  // Both are borrowed and outlive the store.
  EventLoop* loop = nullptr;
  Log* log = nullptr;
  // Beside this program, or in ../libexec/kvtier, if empty.
  std::string keeper_program;
};

}  // namespace kvtier
