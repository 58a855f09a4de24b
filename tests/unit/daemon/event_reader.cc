// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/event_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>

namespace kvtier {
namespace {

namespace json = boost::json;

class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  json::value Read() {
    const auto type = static_cast<uint8_t>(Number(1));
    if (type < 0x80) return uint64_t{type};
    if (type < 0x90) return Map(type & 0x0f);
    if (type < 0xa0) return Array(type & 0x0f);
    if (type < 0xc0) return json::string(Take(type & 0x1f));
    if (type >= 0xe0) return int64_t{static_cast<int8_t>(type)};
    switch (type) {
      case 0xc0:
        return nullptr;
      case 0xc4:
        return Hex(Take(Number(1)));
      case 0xcb:
        return std::bit_cast<double>(Number(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return Number(1 << (type - 0xcc));
      case 0xd3:
        return static_cast<int64_t>(Number(8));
      case 0xd9:
        return json::string(Take(Number(1)));
      case 0xdc:
        return Array(Number(2));
      default:
        ADD_FAILURE() << fmt::format("type {:#x} is not expected", type);
        rest_ = {};
        return nullptr;
    }
  }
  [[nodiscard]] bool finished() const { return rest_.empty(); }

 private:
  std::string_view Take(size_t bytes) {
    EXPECT_LE(bytes, rest_.size()) << "the payload ends early";
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (const char byte : Take(bytes)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }
  static json::value Hex(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
    return json::string(text);
  }
  json::value Array(size_t count) {
    json::array array;
    while (count-- > 0 && !rest_.empty()) array.push_back(Read());
    return array;
  }
  json::value Map(size_t count) {
    json::object object;
    while (count-- > 0 && !rest_.empty()) {
      const json::value name = Read();
      object[name.as_string()] = Read();
    }
    return object;
  }

  std::string_view rest_;
};

}  // namespace

json::value ReadMsgpack(std::string_view payload) {
  Reader reader(payload);
  json::value value = reader.Read();
  EXPECT_TRUE(reader.finished()) << "more than one value";
  return value;
}

void RouterView::Apply(const std::string& topic, std::string_view payload) {
  Blocks& blocks = topics_[topic];
  const json::value batch = ReadMsgpack(payload);
  for (const json::value& event : batch.at(1).as_array()) {
    const json::string& type = event.at("type").as_string();
    if (type == "AllBlocksCleared") {
      blocks.clear();
      continue;
    }
    const std::string medium(event.at("medium").as_string());
    for (const json::value& hash : event.at("block_hashes").as_array()) {
      const std::pair key(std::string(hash.as_string()), medium);
      if (type == "BlockStored") {
        blocks.insert(key);
      } else {
        blocks.erase(key);
      }
    }
  }
}

}  // namespace kvtier
