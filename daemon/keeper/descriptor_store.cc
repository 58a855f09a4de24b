// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/descriptor_store.h"

#include <fcntl.h>

#include <utility>

#include "base/memory_file.h"

namespace kvtier {

std::optional<UniqueFd> DescriptorStore::Take(std::string_view name) {
  if (released_ || kept_.contains(name) || !taken_.emplace(name).second) return std::nullopt;
  return DoTake(name);
}

Status DescriptorStore::Keep(std::string_view name, int descriptor, uint64_t bytes) {
  if (released_) return MakeError(ErrorCode::kUnavailable, "nothing_keeps", "all was released");
  auto duplicate =
      std::make_shared<const UniqueFd>(::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!duplicate->valid()) {
    return tl::unexpected(Error{ErrorCode::kResourceExhausted, "descriptors",
                                "a descriptor to keep cannot be duplicated"});
  }
  const std::string key(name);
  KVT_RETURN_IF_ERROR(DoKeep(key, duplicate));
  kept_[key] = {std::move(duplicate), bytes > 0 ? bytes : FileBytes(descriptor)};
  return {};
}

void DescriptorStore::NoteBytes(std::string_view name, uint64_t bytes) {
  if (const auto found = kept_.find(name); found != kept_.end()) found->second.bytes = bytes;
}

void DescriptorStore::Release(std::string_view name) {
  if (released_) return;
  if (const auto found = kept_.find(name); found != kept_.end()) kept_.erase(found);
  taken_.emplace(name);
  DoRelease(name);
}

void DescriptorStore::ReleaseAll() {
  if (std::exchange(released_, true)) return;
  DoReleaseAll();
  kept_.clear();
}

std::vector<DescriptorStore::Entry> DescriptorStore::entries() const {
  std::vector<Entry> entries;
  for (const auto& [name, kept] : kept_) entries.push_back({name, kept.bytes});
  return entries;
}

}  // namespace kvtier
