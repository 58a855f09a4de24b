// SPDX-License-Identifier: Apache-2.0
// Prefills one frame to a buffer that may hold others already. Within this room only.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/byte_reader.h"
#include "base/ids.h"
#include "protocol/message_type.h"

namespace kvtier::wire {

// The frame is complete when the writer is destroyed. `out` must not be touched in between.
class FrameWriter {
 public:
  FrameWriter(MessageType type, uint16_t flags, uint64_t request_id, std::vector<std::byte>* out);
  ~FrameWriter();
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  // `bytes` more will be written: spares the buffer from growing step by step.
  void Reserve(size_t bytes) { out_->reserve(out_->size() + bytes); }

  template <std::unsigned_integral T>
  void Write(T value) {
    WriteBytes(std::as_bytes(std::span(&value, 1)));
  }
  void WriteBytes(std::span<const std::byte> bytes) {
    out_->insert(out_->end(), bytes.begin(), bytes.end());
  }
  template <size_t kBytes>
  void WriteDigest(const Digest<kBytes>& digest) {
    WriteBytes(std::as_bytes(std::span(digest.bytes)));
  }
  // `count` rows of the same fields, packed: `row(i)` gives a tuple of unsigned integers.
  template <typename Row>
  void WriteRows(size_t count, const Row& row);
  void WriteHandles(std::span<const BlockHandle> handles) {
    WriteRows(handles.size(), [handles](size_t i) {
      return std::tuple(handles[i].index.value, handles[i].generation);
    });
  }
  // A u32 count, then the hashes. REQUIRES: at most `max_count` of them.
  void WriteHashes(std::span<const BlockHash> hashes, uint32_t max_count);
  // A u32 count. REQUIRES: count <= max_count.
  void WriteCount(size_t count, uint32_t max_count);
  // A u16 length, then the text. REQUIRES: text.size() <= max_bytes.
  void WriteText(std::string_view text, size_t max_bytes);
  // As WriteText, for texts meant for people: cut to `max_bytes`.
  void WriteCutText(std::string_view text, size_t max_bytes);

 private:
  std::vector<std::byte>* const out_;
  const size_t header_at_;
};

template <typename Row>
void FrameWriter::WriteRows(size_t count, const Row& row) {
  // All rows' space at once: appending field by field would cost more than the rest of the reply.
  const auto bytes_of = [](const auto&... field) { return (sizeof(field) + ...); };
  const size_t row_bytes = std::apply(bytes_of, decltype(row(0)){});
  size_t at = out_->size();
  out_->resize(at + count * row_bytes);
  const auto store = [&](const auto& field) {
    static_assert(std::unsigned_integral<std::decay_t<decltype(field)>>);
    std::memcpy(out_->data() + at, &field, sizeof(field));
    at += sizeof(field);
  };
  for (size_t i = 0; i < count; ++i) {
    std::apply([&](const auto&... field) { (store(field), ...); }, row(i));
  }
}

}  // namespace kvtier::wire
