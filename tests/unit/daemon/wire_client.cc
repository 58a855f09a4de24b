// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/wire_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/digest.h"
#include "protocol/socket_io.h"

namespace kvtier {
namespace {

constexpr timeval kReceiveTimeout{60, 0};

}  // namespace

WireClient::WireClient(const std::string& path)
    : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0)
      << path << ": " << std::strerror(errno);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kReceiveTimeout, sizeof(kReceiveTimeout));
}

uint64_t WireClient::SendFrame(uint16_t type, uint16_t flags, std::span<const std::byte> payload) {
  ByteWriter writer;
  writer.Write(static_cast<uint32_t>(payload.size()));
  writer.Write(type);
  writer.Write(flags);
  writer.Write(++last_request_);
  writer.WriteBytes(payload);
  SendBytes(writer.data());
  return last_request_;
}

void WireClient::SendBytes(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  while (!bytes.empty()) {
    const auto sent = wire::Send(socket_.get(), bytes, std::exchange(descriptors, {}));
    if (!sent || !*sent) return;
    bytes = bytes.subspan(**sent);
  }
}

std::optional<WireClient::Received> WireClient::Receive() {
  while (true) {
    const auto frame = decoder_.Next();
    if (frame && *frame) {
      Received received{(*frame)->type, (*frame)->request_id, {}, {}, {}};
      received.payload.assign((*frame)->payload.begin(), (*frame)->payload.end());
      if (!descriptors_.empty()) {
        received.descriptor = std::move(descriptors_.front());
        descriptors_.erase(descriptors_.begin());
      }
      if (received.Is(wire::MessageType::kTakeMemoryReply) && !descriptors_.empty()) {
        received.second = std::move(descriptors_.front());
        descriptors_.erase(descriptors_.begin());
      }
      return received;
    }
    const auto bytes = wire::Receive(socket_.get(), decoder_.Prepare(), &descriptors_);
    if (!bytes || *bytes == size_t{0}) return std::nullopt;
    if (!*bytes) {
      ADD_FAILURE() << "nothing was received in time";
      return std::nullopt;
    }
    decoder_.Commit(**bytes);
  }
}

std::string WireClient::ExpectError(uint64_t request_id) {
  const std::optional<Received> received = Receive();
  if (!received) return "end of stream";
  if (!received->Is(wire::MessageType::kError)) {
    return std::string(wire::MessageTypeName(received->type));
  }
  EXPECT_EQ(received->request_id, request_id);
  return wire::Decode<wire::ErrorReply>(received->payload).value().error.reason;
}

void WireClient::Unexpected(const std::optional<Received>& received, wire::MessageType expected) {
  if (!received) {
    ADD_FAILURE() << "end of stream instead of " << wire::MessageTypeName(expected);
  } else if (received->Is(wire::MessageType::kError)) {
    ADD_FAILURE() << wire::Decode<wire::ErrorReply>(received->payload).value().error.ToString()
                  << " instead of " << wire::MessageTypeName(expected);
  } else {
    ADD_FAILURE() << wire::MessageTypeName(received->type) << " of " << received->request_id
                  << " instead of " << wire::MessageTypeName(expected) << " of " << last_request_;
  }
}

wire::AttachReply WireClient::Attach(const ModelRecord& record, uint32_t device,
                                     uint64_t pool_bytes) {
  (void)Hello();
  model_ = Call<wire::RegisterModelReply>(wire::RegisterModel{record}).model;
  return AttachPool(device, pool_bytes);
}

wire::AttachReply WireClient::AttachPool(uint32_t device, uint64_t pool_bytes) {
  Send(wire::Attach{.model = model_, .device = device, .pool_bytes = pool_bytes});
  std::optional<Received> received = Receive();
  if (!received || !received->Is(wire::MessageType::kAttachReply)) {
    Unexpected(received, wire::MessageType::kAttachReply);
    return {};
  }
  pool_fd_ = std::move(received->descriptor);
  return wire::Decode<wire::AttachReply>(received->payload).value();
}

ModelRecord TestModel() {
  ModelRecord record;
  record.name = "test-model";
  record.groups[0].layers = 1;
  record.groups[0].kv_heads = 1;
  record.groups[0].k_head_dim = 64;
  record.groups[0].v_head_dim = 64;
  record.groups[0].dtype = KvDtype::kBfloat16;
  record.groups[0].block_tokens = 16;
  return record;
}

BlockHash TestHash(uint64_t number) { return Sha256(std::as_bytes(std::span(&number, 1))); }

}  // namespace kvtier
