// SPDX-License-Identifier: Apache-2.0
// Buffers of bytes: fields read from and written to them, and memory that direct I/O accepts.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {

static_assert(std::endian::native == std::endian::little, "wire and disk formats are copied as is");

// Reads little-endian fields of bytes that cannot be trusted. Reads forward; once a read passes the
// end, `ok()` is false and every read gives zeros.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : data_(data) {}

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t remaining() const { return data_.size() - position_; }
  // True if everything was read and nothing was missing.
  [[nodiscard]] bool AtEnd() const { return ok_ && remaining() == 0; }

  template <std::unsigned_integral T>
  [[nodiscard]] T Read() {
    T value{};
    const std::span<const std::byte> bytes = ReadBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  template <size_t kBytes>
  [[nodiscard]] Digest<kBytes> ReadDigest() {
    Digest<kBytes> digest;
    const std::span<const std::byte> bytes = ReadBytes(kBytes);
    if (!bytes.empty()) std::memcpy(digest.bytes.data(), bytes.data(), kBytes);
    return digest;
  }

  // A view into the input, or an empty one when fewer bytes remain.
  [[nodiscard]] std::span<const std::byte> ReadBytes(size_t count) {
    if (!ok_ || count > remaining()) {
      ok_ = false;
      return {};
    }
    const auto bytes = data_.subspan(position_, count);
    position_ += count;
    return bytes;
  }

  // A u16 length, then that many bytes; more than `max_bytes` is a failure.
  [[nodiscard]] std::string ReadString(size_t max_bytes) {
    const size_t length = Read<uint16_t>();
    if (length > max_bytes) ok_ = false;
    const auto bytes = ReadBytes(length);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> data_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Writes what ByteReader reads, appending to a buffer that it owns.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void Write(T value) {
    WriteBytes(std::as_bytes(std::span(&value, 1)));
  }
  template <size_t kBytes>
  void WriteDigest(const Digest<kBytes>& digest) {
    WriteBytes(std::as_bytes(std::span(digest.bytes)));
  }
  void WriteBytes(std::span<const std::byte> bytes) {
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }
  // REQUIRES: text.size() < 65536.
  void WriteString(std::string_view text) {
    Write(static_cast<uint16_t>(text.size()));
    WriteBytes(std::as_bytes(std::span(text)));
  }

  [[nodiscard]] const std::vector<std::byte>& data() const { return data_; }
  [[nodiscard]] std::vector<std::byte> Take() { return std::move(data_); }

 private:
  std::vector<std::byte> data_;
};

// Memory for direct I/O: zeroed, aligned to 4 KiB. Move-only. Without memory it throws as `new`
// does.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    if (data_ == nullptr) throw std::bad_alloc();
    std::fill_n(data_.get(), bytes, std::byte{0});
  }

  [[nodiscard]] std::span<std::byte> span() { return {data_.get(), bytes_}; }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace kvtier
