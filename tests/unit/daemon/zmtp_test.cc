// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/zmtp.h"

#include <gtest/gtest.h>

#include "tests/fakes/seeded_random.h"

namespace kvtier {
namespace {

std::string Greeting() {
  std::string greeting;
  AppendZmtpGreeting(&greeting);
  return greeting;
}

void Feed(ZmtpDecoder* decoder, std::string_view bytes) {
  decoder->Feed(std::as_bytes(std::span(bytes)));
}

std::string ReasonAfter(std::string_view bytes) {
  ZmtpDecoder decoder;
  Feed(&decoder, bytes);
  while (true) {
    const auto frame = decoder.Next();
    if (!frame) return frame.error().reason;
    if (!*frame) return "";
  }
}

// As the specification draws it.
TEST(ZmtpTest, GreetsAsVersionThreeWithoutAuthentication) {
  const std::string greeting = Greeting();
  ASSERT_EQ(greeting.size(), kZmtpGreetingBytes);
  EXPECT_EQ(greeting.substr(0, 12), std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0", 12));
  EXPECT_EQ(greeting.substr(12, 5), std::string("NULL\0", 5));
}

TEST(ZmtpTest, ReadsFramesByteByByte) {
  std::string stream = Greeting();
  AppendZmtpReady("SUB", &stream);
  AppendZmtpPart("\x01topic", /*more=*/false, &stream);
  AppendZmtpPart(std::string(300, 'x'), /*more=*/true, &stream);
  ZmtpDecoder decoder;
  std::vector<std::string> bodies;
  for (const char byte : stream) {
    Feed(&decoder, {&byte, 1});
    const auto frame = decoder.Next();
    ASSERT_TRUE(frame) << frame.error().ToString();
    if (!*frame) continue;
    EXPECT_EQ((*frame)->command, bodies.empty());
    EXPECT_EQ((*frame)->more, bodies.size() == 2);
    bodies.emplace_back((*frame)->body);
  }
  ASSERT_EQ(bodies.size(), 3u);
  const auto command = ParseZmtpCommand(bodies[0]);
  ASSERT_TRUE(command);
  EXPECT_EQ(command->name, "READY");
  EXPECT_EQ(ZmtpSocketType(command->data), "SUB");
  EXPECT_EQ(bodies[1], "\x01topic");
  EXPECT_EQ(bodies[2], std::string(300, 'x'));
}

TEST(ZmtpTest, RefusesWhatIsNoPeerOfIts) {
  EXPECT_EQ(ReasonAfter("GET / HTTP/1.1\r\n"), "zmtp_greeting");
  std::string version_two = Greeting();
  version_two[10] = 1;
  EXPECT_EQ(ReasonAfter(version_two), "zmtp_version");
  std::string curve = Greeting();
  curve.replace(12, 5, "CURVE");
  EXPECT_EQ(ReasonAfter(curve), "zmtp_mechanism");
}

TEST(ZmtpTest, RefusesFramesThatAreTooLongBeforeTheirBytesCome) {
  EXPECT_EQ(ReasonAfter(Greeting() + std::string("\x02\xff\xff\xff\xff\xff\xff\xff\xff", 9)),
            "zmtp_frame_too_long");
  EXPECT_EQ(ReasonAfter(Greeting() + "\x10\x01x"), "zmtp_flags");
  EXPECT_EQ(ReasonAfter(Greeting() + "\x05\x01x"), "zmtp_flags");
}

TEST(ZmtpTest, FindsNothingInBrokenCommands) {
  EXPECT_FALSE(ParseZmtpCommand(""));
  EXPECT_FALSE(ParseZmtpCommand(std::string_view("\0x", 2)));
  EXPECT_FALSE(ParseZmtpCommand("\x05READ"));
  EXPECT_EQ(ZmtpSocketType("\x0bSocket-Type"), "");
  EXPECT_EQ(ZmtpSocketType(std::string_view("\x0bSocket-Type\0\0\0\x04SUB", 19)), "");
  EXPECT_EQ(ZmtpSocketType("\xffx"), "");
}

TEST(ZmtpTest, TakesRandomBytesWithoutHarm) {
  SeededRandom random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = random.Chance(0.8) ? Greeting() : "";
    for (uint64_t length = random.Below(64); length > 0; --length) {
      bytes.push_back(static_cast<char>(random.Chance(0.5) ? random.Below(8) : random.Next()));
    }
    ZmtpDecoder decoder;
    Feed(&decoder, bytes);
    size_t taken = 0;
    while (true) {
      const auto frame = decoder.Next();
      if (!frame || !*frame) break;
      taken += (*frame)->body.size() + 2;
      ASSERT_LE(taken, bytes.size());
      if (const auto command = ParseZmtpCommand((*frame)->body)) {
        ASSERT_LE(ZmtpSocketType(command->data).size(), command->data.size());
      }
    }
  }
}

}  // namespace
}  // namespace kvtier
