// SPDX-License-Identifier: Apache-2.0
#include "protocol/frame_writer.h"

#include <cstring>

#include "base/check.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace kvtier::wire {

FrameWriter::FrameWriter(MessageType type, uint16_t flags, uint64_t request_id,
                         std::vector<std::byte>* out)
    : out_(out), header_at_(out->size()) {
  Write(uint32_t{0});  // payload_bytes, known at the end
  Write(static_cast<uint16_t>(type));
  Write(flags);
  Write(request_id);
}

FrameWriter::~FrameWriter() {
  const size_t payload_bytes = out_->size() - header_at_ - kFrameHeaderBytes;
  KVT_CHECK(payload_bytes <= UINT32_MAX);
  const auto field = static_cast<uint32_t>(payload_bytes);
  std::memcpy(out_->data() + header_at_, &field, sizeof(field));
}

void FrameWriter::WriteHashes(std::span<const BlockHash> hashes, uint32_t max_count) {
  WriteCount(hashes.size(), max_count);
  WriteBytes(std::as_bytes(hashes));
}

void FrameWriter::WriteCount(size_t count, uint32_t max_count) {
  KVT_CHECK(count <= max_count);
  Write(static_cast<uint32_t>(count));
}

void FrameWriter::WriteText(std::string_view text, size_t max_bytes) {
  KVT_CHECK(text.size() <= max_bytes && max_bytes <= UINT16_MAX);
  Write(static_cast<uint16_t>(text.size()));
  WriteBytes(std::as_bytes(std::span(text)));
}

void FrameWriter::WriteCutText(std::string_view text, size_t max_bytes) {
  WriteText(CutText(text, max_bytes), max_bytes);
}

}  // namespace kvtier::wire
