// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/key_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/posix.h"
#include "tiers/storage/header_page.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "KVTKEYF1";
constexpr std::string_view kName = "keys", kFreshName = "keys.new";
constexpr uint32_t kVersion = 1;

// The bytes as they lie in the file, little-endian.
struct Head {
  HeaderPagePrefix prefix;
  GcmNonce nonce;
  uint32_t keys;
  GcmTag tag;
  uint64_t order;
};
static_assert(sizeof(Head) == 64, "docs/DISK_FORMAT.md lists every byte");
struct Record {
  uint64_t id;
  Digest256 tenant;
  uint32_t hour;
  uint32_t zero;
  std::array<std::byte, kXtsKeyBytes> key;
};
static_assert(sizeof(Record) == 112);
constexpr size_t kMaxFileBytes = sizeof(Head) + kMaxStoredKeys * sizeof(Record);

tl::unexpected<Error> Damaged(const char* what) {
  return MakeError(ErrorCode::kCorrupt, "key_file_damaged", what);
}

tl::unexpected<Error> Failed(const char* what, const fs::path& path) {
  return tl::unexpected<Error>(
      ErrnoError(ErrorCode::kIoError, errno, what + (" " + path.native())));
}

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The fields that the tag covers besides the records.
Head AssociatedData(const Head& head) {
  Head associated = head;
  associated.prefix.checksum = 0;
  associated.tag = {};
  return associated;
}

uint64_t ChecksumOf(std::span<const std::byte> file) {
  std::vector<std::byte> bytes(file.begin(), file.end());
  std::memset(bytes.data() + offsetof(HeaderPagePrefix, checksum), 0, sizeof(uint64_t));
  return ChecksumHeader(bytes);
}

Result<std::vector<StoredKey>> DecodeRecords(std::span<const std::byte> bytes) {
  std::vector<StoredKey> keys(bytes.size() / sizeof(Record));
  for (size_t i = 0; i < keys.size(); ++i) {
    Record record;
    std::memcpy(&record, bytes.data() + i * sizeof(record), sizeof(record));
    if (record.id == 0 || record.zero != 0) return Damaged("a key's record");
    keys[i].id = record.id;
    keys[i].tenant = record.tenant;
    keys[i].hour = record.hour;
    keys[i].key = record.key;
    WipeBytes(record.key);
  }
  return keys;
}

}  // namespace

RootKey::RootKey(std::span<const std::byte, kGcmKeyBytes> bytes) : bytes_{} {
  std::ranges::copy(bytes, bytes_.begin());
}

Result<std::vector<std::byte>> EncodeKeyFile(const AesAlgorithms& aes, const RootKey& root,
                                             const KeyRing::Contents& contents) {
  const std::span<const StoredKey> keys = contents.keys;
  KVT_CHECK(keys.size() <= kMaxStoredKeys);
  Head head{};
  std::memcpy(head.prefix.magic, kMagic.data(), kMagic.size());
  head.prefix.version = kVersion;
  head.keys = static_cast<uint32_t>(keys.size());
  head.order = contents.version;
  if (::getrandom(head.nonce.data(), head.nonce.size(), 0) != std::ssize(head.nonce)) {
    return MakeError(ErrorCode::kIoError, "random", "getrandom gave no bytes");
  }
  std::vector<std::byte> file(sizeof(Head) + keys.size() * sizeof(Record));
  const auto records = std::span(file).subspan(sizeof(Head));
  for (size_t i = 0; i < keys.size(); ++i) {
    Record record{keys[i].id, keys[i].tenant, keys[i].hour, 0, keys[i].key};
    std::memcpy(records.data() + i * sizeof(record), &record, sizeof(record));
    WipeBytes(record.key);
  }
  AesAlgorithms::Gcm gcm = aes.WithKey(AesAlgorithms::Direction::kEncrypt, root.bytes());
  const Head associated = AssociatedData(head);
  if (!gcm.Encrypt(head.nonce, BytesOf(associated), records, records, &head.tag)) {
    WipeBytes(records);
    return MakeError(ErrorCode::kIoError, "encryption", "OpenSSL failed");
  }
  std::memcpy(file.data(), &head, sizeof(head));
  head.prefix.checksum = ChecksumOf(file);
  std::memcpy(file.data(), &head, sizeof(head));
  return file;
}

// The checksum tells damage from another root key: an operator mends these differently.
Result<KeyRing::Contents> DecodeKeyFile(const AesAlgorithms& aes, const RootKey& root,
                                        std::span<const std::byte> file) {
  Head head;
  if (file.size() < sizeof(head) || file.size() > kMaxFileBytes) return Damaged("its size");
  std::memcpy(&head, file.data(), sizeof(head));
  if (std::string_view(head.prefix.magic, sizeof(head.prefix.magic)) != kMagic ||
      head.prefix.version != kVersion || head.prefix.zero != 0) {
    return Damaged("its head");
  }
  const auto encrypted = file.subspan(sizeof(head));
  if (encrypted.size() != uint64_t{head.keys} * sizeof(Record)) return Damaged("its size");
  if (head.prefix.checksum != ChecksumOf(file)) return Damaged("its checksum");
  std::vector<std::byte> plain(encrypted.size());
  AesAlgorithms::Gcm gcm = aes.WithKey(AesAlgorithms::Direction::kDecrypt, root.bytes());
  const Head associated = AssociatedData(head);
  if (!gcm.Decrypt(head.nonce, BytesOf(associated), encrypted, plain, head.tag)) {
    WipeBytes(plain);
    return MakeError(ErrorCode::kPermissionDenied, "wrong_root_key",
                     "the root key is not the one that wrapped the keys, or the file was forged");
  }
  Result<std::vector<StoredKey>> keys = DecodeRecords(plain);
  WipeBytes(plain);
  if (!keys) return tl::unexpected(keys.error());
  return KeyRing::Contents{head.order, *std::move(keys)};
}

Result<KeyRing::Contents> KeyFile::Load(const std::optional<RootKey>& previous) const {
  const fs::path path = directory_ / kName;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) {
    if (errno == ENOENT) return KeyRing::Contents{};
    return Failed("open", path);
  }
  // One more byte than there may be, so that a longer file is noticed.
  std::vector<std::byte> file(kMaxFileBytes + 1);
  size_t bytes = 0;
  for (ssize_t read = 1; read > 0 && bytes < file.size(); bytes += static_cast<size_t>(read)) {
    read = ::read(fd.get(), file.data() + bytes, file.size() - bytes);
    if (read < 0) return Failed("read", path);
  }
  file.resize(bytes);
  Result<KeyRing::Contents> keys = DecodeKeyFile(aes_, root_, file);
  if (!keys && previous && keys.error().reason == "wrong_root_key") {
    keys = DecodeKeyFile(aes_, *previous, file);
  }
  if (!keys) keys.error().context = path.native() + ": " + keys.error().context;
  return keys;
}

// Written beside and renamed, so that a crash leaves the old file or the new one, never half.
Status KeyFile::Save(const KeyRing::Contents& contents) {
  const std::lock_guard lock(mutex_);
  if (saved_ >= contents.version) return {};
  KVT_ASSIGN_OR_RETURN(const std::vector<std::byte> file, EncodeKeyFile(aes_, root_, contents));
  const fs::path path = directory_ / kName;
  const fs::path fresh = directory_ / kFreshName;
  {
    const UniqueFd fd(
        ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return Failed("create", fresh);
    for (size_t bytes = 0; bytes < file.size();) {
      const ssize_t written = ::write(fd.get(), file.data() + bytes, file.size() - bytes);
      if (written < 0) return Failed("write", fresh);
      bytes += static_cast<size_t>(written);
    }
    if (::fsync(fd.get()) != 0) return Failed("sync", fresh);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0) return Failed("rename", fresh);
  const UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) return Failed("sync", directory_);
  saved_ = contents.version;
  return {};
}

Status KeyFile::RemoveOlder(uint64_t version) {
  const std::lock_guard lock(mutex_);
  return saved_ >= version ? Status() : Remove(directory_);
}

// First a new one that was not renamed. A directory that does not let go of it keeps the other,
// too.
Status KeyFile::Remove(const fs::path& directory) {
  const fs::path path = directory / kName;
  (void)::unlink((directory / kFreshName).c_str());
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return {};
    return Failed("remove", path);
  }
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return Failed("sync", directory);
  return {};
}

}  // namespace kvtier
