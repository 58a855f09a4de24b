// SPDX-License-Identifier: Apache-2.0
// A client of the daemon's sockets for tests: blocking, byte-exact, and able to do wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/posix.h"
#include "protocol/frame.h"
#include "protocol/messages.h"

namespace kvtier {

// 16 tokens of 256 bytes: blocks of 4 KiB.
[[nodiscard]] ModelRecord TestModel();

class WireClient {
 public:
  struct Received {
    uint16_t type = 0;
    uint64_t request_id = 0;
    std::vector<std::byte> payload;
    UniqueFd descriptor;
    UniqueFd second;  // of a TAKE_MEMORY_REPLY

    [[nodiscard]] bool Is(wire::MessageType expected) const {
      return type == static_cast<uint16_t>(expected);
    }
  };

  // Connects; receiving gives up, with a failure of the test, after many seconds.
  explicit WireClient(const std::string& path);

  // Sends a frame with a new request id, which is returned.
  template <typename Message>
  uint64_t Send(const Message& message, bool want_reply = false) {
    std::vector<std::byte> frame;
    wire::Encode(message, ++last_request_, &frame, want_reply ? wire::kFlagWantReply : 0);
    SendBytes(frame);
    return last_request_;
  }
  // The same with a descriptor, or two of them, which stay the caller's.
  template <typename Message>
  uint64_t SendWithDescriptor(const Message& message, int descriptor) {
    return SendWithDescriptors(message,
                               descriptor < 0 ? std::vector<int>() : std::vector<int>{descriptor});
  }
  template <typename Message>
  uint64_t SendWithDescriptors(const Message& message, const std::vector<int>& descriptors) {
    std::vector<std::byte> frame;
    wire::Encode(message, ++last_request_, &frame);
    SendBytes(frame, descriptors);
    return last_request_;
  }
  // Sends a frame of any content.
  uint64_t SendFrame(uint16_t type, uint16_t flags, std::span<const std::byte> payload);
  // Sends anything. A daemon that has closed the connection is no failure.
  void SendBytes(std::span<const std::byte> bytes, std::span<const int> descriptors = {});

  // The next frame; nothing at the end of the stream.
  [[nodiscard]] std::optional<Received> Receive();
  // The next frame, which must be a Reply to the last request.
  template <typename Reply>
  [[nodiscard]] Reply Expect() {
    const std::optional<Received> received = Receive();
    if (!received || !received->Is(Reply::kType) || received->request_id != last_request_) {
      Unexpected(received, Reply::kType);
      return {};
    }
    return wire::Decode<Reply>(received->payload).value();
  }
  template <typename Reply, typename Message>
  [[nodiscard]] Reply Call(const Message& message) {
    Send(message);
    return Expect<Reply>();
  }
  // The next frame, which must be an ERROR of this request. "reason", or what came instead.
  [[nodiscard]] std::string ExpectError(uint64_t request_id);
  template <typename Message>
  [[nodiscard]] std::string ErrorOf(const Message& message) {
    return ExpectError(Send(message));
  }
  // The stream has ended, nothing before.
  [[nodiscard]] bool AtEnd() { return !Receive().has_value(); }

  // Says hello, registers a model, attaches its pool; of `pool_bytes`, if this creates it.
  wire::AttachReply Attach(const ModelRecord& record, uint32_t device, uint64_t pool_bytes = 0);
  wire::AttachReply Attach() { return Attach(TestModel(), 0); }
  // Attaches one more pool of that model.
  wire::AttachReply AttachPool(uint32_t device, uint64_t pool_bytes = 0);
  [[nodiscard]] wire::HelloReply Hello() {
    return Call<wire::HelloReply>(wire::Hello{.client_name = "test"});
  }

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] const UniqueFd& pool_fd() const { return pool_fd_; }
  void Close() { socket_.Reset(); }

 private:
  void Unexpected(const std::optional<Received>& received, wire::MessageType expected);

  UniqueFd socket_;
  UniqueFd pool_fd_;  // of the last that was attached
  wire::ModelId model_;
  uint64_t last_request_ = 0;
  wire::FrameDecoder decoder_{wire::kMaxAdminReplyFrameBytes};
  std::vector<UniqueFd> descriptors_;
};

// A hash like no other of another number.
[[nodiscard]] BlockHash TestHash(uint64_t number);

}  // namespace kvtier
