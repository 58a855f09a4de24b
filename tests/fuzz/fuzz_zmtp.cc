// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: what a router's connection sends through ZmtpDecoder, in pieces of any size.
//
// Checked besides memory safety: frames are no longer than promised, how the stream is cut makes no
// difference, and what a command or a property is said to be lies within its frame.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/events/zmtp.h"
#include "tests/fuzz/fuzz_input.h"

namespace kvtier {
namespace {

void CheckWithin(std::string_view part, std::string_view whole) {
  KVT_CHECK(part.empty() || (part.data() >= whole.data() && part.end() <= whole.end()));
}

// The frames' flags and bodies, and at the end the reason of the error, if there is one.
std::vector<std::string> Decode(std::span<const std::byte> stream, size_t piece) {
  ZmtpDecoder decoder;
  std::vector<std::string> decoded;
  while (!stream.empty()) {
    const size_t bytes = std::min(piece, stream.size());
    decoder.Feed(stream.first(bytes));
    stream = stream.subspan(bytes);
    while (true) {
      const auto frame = decoder.Next();
      if (!frame) {
        decoded.push_back(frame.error().reason);
        return decoded;
      }
      if (!*frame) break;
      KVT_CHECK((*frame)->body.size() <= kMaxZmtpFrameBytes);
      if (const auto command = ParseZmtpCommand((*frame)->body)) {
        CheckWithin(command->name, (*frame)->body);
        CheckWithin(command->data, (*frame)->body);
        CheckWithin(ZmtpSocketType(command->data), command->data);
      }
      decoded.push_back(std::to_string((*frame)->more + 2 * (*frame)->command) +
                        std::string((*frame)->body));
    }
  }
  return decoded;
}

}  // namespace
}  // namespace kvtier

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvtier;
  FuzzInput input({data, size});
  const size_t piece = 1 + input.Below(64);
  std::string stream;
  if (input.Flag()) AppendZmtpGreeting(&stream);
  if (size > 2) stream.append(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto bytes = std::as_bytes(std::span(stream));
  KVT_CHECK(Decode(bytes, piece) == Decode(bytes, stream.size() + 1));
  return 0;
}
