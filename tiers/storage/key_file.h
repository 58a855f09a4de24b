// SPDX-License-Identifier: Apache-2.0
// The keys of an encrypted disk tier in a file, wrapped by a root key that lies elsewhere: they are
// then there after a reboot, too. docs/DISK_FORMAT.md gives the bytes.
//
// The file's earlier contents are not gone when it is written anew: the drive may keep them, and a
// copy may have been made. With the root key of that time they can be read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tiers/storage/aes.h"
#include "tiers/storage/key_ring.h"

namespace kvtier {

// Wraps the data keys. Wiped when it ends; move-only.
class RootKey {
 public:
  explicit RootKey(std::span<const std::byte, kGcmKeyBytes> bytes);
  ~RootKey() { WipeBytes(bytes_); }
  RootKey(RootKey&& other) noexcept : bytes_(other.bytes_) { WipeBytes(other.bytes_); }
  RootKey& operator=(RootKey&&) = delete;
  [[nodiscard]] std::span<const std::byte, kGcmKeyBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kGcmKeyBytes> bytes_;
};

// A file of more keys is refused.
inline constexpr uint32_t kMaxStoredKeys = KeyRing::kMaxKeys;

// Under a random nonce: two files of one root key have the same one with a probability of 2^-32
// after 2^32 of them. Errors: kIoError "random", "encryption".
[[nodiscard]] Result<std::vector<std::byte>> EncodeKeyFile(const AesAlgorithms& aes,
                                                           const RootKey& root,
                                                           const KeyRing::Contents& contents);
// The inverse, for bytes that may hold anything. Errors: kCorrupt "key_file_damaged" if it is none,
// or has changed; kPermissionDenied "wrong_root_key" if it is whole and another key wrapped it.
[[nodiscard]] Result<KeyRing::Contents> DecodeKeyFile(const AesAlgorithms& aes, const RootKey& root,
                                                      std::span<const std::byte> file);

// The file of one directory. Save may be called on any thread.
class KeyFile {
 public:
  KeyFile(const std::filesystem::path& directory, RootKey root, AesAlgorithms aes)
      : directory_(directory), root_(std::move(root)), aes_(std::move(aes)) {}

  // The file's keys; nothing if there is none. Blocks. With the previous root key if the file was
  // wrapped by that one. Errors: those of DecodeKeyFile; kIoError by errno's name.
  [[nodiscard]] Result<KeyRing::Contents> Load(const std::optional<RootKey>& previous) const;
  // Replaces the file, durably, unless this or a later state was saved already. Blocks. Errors:
  // those of EncodeKeyFile; kIoError by errno's name.
  [[nodiscard]] Status Save(const KeyRing::Contents& contents);
  // Does nothing if there is none. Durable. Errors: kIoError by errno's name.
  [[nodiscard]] static Status Remove(const std::filesystem::path& directory);
  // The same, unless that state or a later one was saved.
  [[nodiscard]] Status RemoveOlder(uint64_t version);

 private:
  const std::filesystem::path directory_;
  const RootKey root_;
  const AesAlgorithms aes_;
  std::mutex mutex_;    // guards what follows, and the file
  uint64_t saved_ = 0;  // version
};

}  // namespace kvtier
