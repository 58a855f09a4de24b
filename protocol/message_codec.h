// SPDX-License-Identifier: Apache-2.0
// How a message's list of fields becomes bytes and bytes become the message. Internal to protocol/.
//
// A list of fields is one function template
//   void Fields(auto& io, Like<Attach> auto& m) { io.Number(m.model); io.Number(m.device); }
// that is run with a FieldSizer (how many bytes), a FieldWriter (stores them) or a FieldReader
// (takes them from a payload and checks them). All three have the same functions; a bound is given
// once, in the list, and holds for both directions.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/text.h"

namespace kvtier::wire {

// A T to read into, or a const T to write.
template <typename M, typename T>
concept Like = std::same_as<std::remove_const_t<M>, T>;

// Fields that are copied as they lie in memory.
template <typename T>
concept PlainNumber = (std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, float>;

// The first bound that a message passes.
struct PassedBound {
  const char* reason = nullptr;
  uint64_t count = 0;
  uint64_t most = 0;

  [[nodiscard]] Error In(MessageType type) const;  // kLimitExceeded
};

// Sizes or, with kStore, stores. REQUIRES of a message that is stored: it passes no bound.
template <bool kStore>
class FieldOutput {
 public:
  FieldOutput() = default;
  // `out` holds as many bytes as a FieldSizer counted.
  explicit FieldOutput(std::byte* out) : out_(out) {}
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::optional<PassedBound>& passed() const { return passed_; }

  template <PlainNumber T>
  void Number(const T& value) {
    Put(&value, sizeof(value));
  }
  template <typename Tag, PlainNumber Rep>
  void Number(const Strong<Tag, Rep>& id) {
    Number(id.value);
  }
  void Bool(bool value) { Number(static_cast<uint8_t>(value)); }
  void Magic(uint32_t magic, const char*) { Number(magic); }
  template <typename Enum>
  void OneOf(const Enum& value, Enum, Enum) {
    OpenEnum(value);
  }
  template <typename Enum>
  void OpenEnum(const Enum& value) {
    Number(static_cast<std::underlying_type_t<Enum>>(value));
  }
  void Bits(uint8_t bits, uint8_t) { Number(bits); }
  template <typename... Fields>
  void Presence(const std::optional<Fields>&... fields) {
    uint8_t bits = 0, bit = 1;
    ((bits = static_cast<uint8_t>(bits | (fields ? bit : 0)), bit = static_cast<uint8_t>(bit << 1)),
     ...);
    Number(bits);
  }
  void Bytes(std::span<const uint8_t> bytes) { Put(bytes.data(), bytes.size()); }
  void Handle(const BlockHandle& handle) {
    Number(handle.index);
    Number(handle.generation);
  }
  void Count(uint64_t count, uint64_t max_count, const char* too_many) {
    Bound(count, max_count, too_many);
    Number(static_cast<uint32_t>(count));
  }
  void Hashes(std::span<const BlockHash> hashes, uint32_t max_count, const char* too_many) {
    Count(hashes.size(), max_count, too_many);
    Put(hashes.data(), hashes.size_bytes());
  }
  template <PlainNumber T>
  void Numbers(const std::vector<T>& numbers, uint32_t max_count, const char* too_many) {
    Count(numbers.size(), max_count, too_many);
    Put(numbers.data(), numbers.size() * sizeof(T));
  }
  template <typename Item, typename ItemFields>
  void List(const std::vector<Item>& items, uint32_t max_count, const char* too_many,
            const ItemFields& fields) {
    Count(items.size(), max_count, too_many);
    for (const Item& item : items) fields(*this, item);
  }
  void Text(std::string_view text, size_t max_bytes) {
    KVT_CHECK(max_bytes <= UINT16_MAX);
    Bound(text.size(), max_bytes, "text_too_long");
    Number(static_cast<uint16_t>(text.size()));
    Put(text.data(), text.size());
  }
  void CutText(std::string_view text, size_t max_bytes) {
    Text(kvtier::CutText(text, max_bytes), max_bytes);
  }
  void LongText(std::string_view text, uint32_t max_bytes, const char* too_long) {
    Count(text.size(), max_bytes, too_long);
    Put(text.data(), text.size());
  }
  // A record that encodes itself, behind its length.
  template <typename Record>
  void Nested(const Record& record, uint32_t max_bytes, const char* too_long) {
    const std::vector<std::byte> encoded = record.Encode();
    Count(encoded.size(), max_bytes, too_long);
    Put(encoded.data(), encoded.size());
  }
  template <typename Value>
  void Check(bool, const char*, Value) {}

 private:
  void Bound(uint64_t count, uint64_t most, const char* reason) {
    if (count > most && !passed_) [[unlikely]]
      passed_ = {reason, count, most};
  }
  void Put(const void* data, size_t bytes) {
    if constexpr (kStore) {
      if (bytes > 0) std::memcpy(out_ + bytes_, data, bytes);
    }
    bytes_ += bytes;
  }

  std::byte* out_ = nullptr;
  size_t bytes_ = 0;
  std::optional<PassedBound> passed_;
};
using FieldSizer = FieldOutput<false>;
using FieldWriter = FieldOutput<true>;

// Reads one payload and keeps the first error. After an error everything reads as zero or empty, so
// a list of fields needs no branches; call Finish before using the values.
class FieldReader {
 public:
  FieldReader(MessageType type, std::span<const std::byte> payload) : type_(type), rest_(payload) {}

  template <PlainNumber T>
  void Number(T& value) {
    const std::span<const std::byte> bytes = Take(sizeof(T));
    if (!bytes.empty()) {
      std::memcpy(&value, bytes.data(), sizeof(T));
    } else {
      value = T{};
    }
  }
  template <typename Tag, PlainNumber Rep>
  void Number(Strong<Tag, Rep>& id) {
    Number(id.value);
  }
  // 0 or 1; else "unknown_bits".
  void Bool(bool& value) {
    uint8_t bits;
    Bits(bits, 1);
    value = bits != 0;
  }
  // `magic` itself; else kInvalidArgument `reason`.
  void Magic(uint32_t magic, const char* reason);
  // One of the enum's values from `first` to `last`, which it must have without gaps; else
  // "bad_enum".
  template <typename Enum>
  void OneOf(Enum& value, Enum first, Enum last) {
    OpenEnum(value);
    if (value >= first && value <= last) return;
    Check(false, "bad_enum", static_cast<std::underlying_type_t<Enum>>(value));
    value = first;
  }
  // Any value: one that has no name here is for the message's reader to interpret.
  template <typename Enum>
  void OpenEnum(Enum& value) {
    std::underlying_type_t<Enum> number;
    Number(number);
    value = static_cast<Enum>(number);
  }
  // A u8 of which only the bits of `known` may be set; else "unknown_bits".
  void Bits(uint8_t& bits, uint8_t known);
  // A u8 with a bit for each optional field, from bit 0 on: which of them follow at their places.
  template <typename... Fields>
  void Presence(std::optional<Fields>&... fields) {
    uint8_t bits;
    Bits(bits, static_cast<uint8_t>((1u << sizeof...(fields)) - 1));
    ((static_cast<void>((bits & 1) != 0 ? (fields.emplace(), 0) : (fields.reset(), 0)),
      bits = static_cast<uint8_t>(bits >> 1)),
     ...);
  }
  void Bytes(std::span<uint8_t> bytes);
  void Handle(BlockHandle& handle) {
    Number(handle.index);
    Number(handle.generation);
  }
  // A u32; more than `max_count` is kLimitExceeded `too_many`.
  void Count(uint32_t& count, uint32_t max_count, const char* too_many);
  // A u32 count, then hashes, as a view into the payload.
  void Hashes(std::span<const BlockHash>& hashes, uint32_t max_count, const char* too_many);
  // A u32 count, then numbers, as they lie in memory.
  template <PlainNumber T>
  void Numbers(std::vector<T>& numbers, uint32_t max_count, const char* too_many) {
    const std::span<const std::byte> bytes =
        Take(CountOf(max_count, sizeof(T), too_many) * sizeof(T));
    numbers.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  }
  // A u32 count of items, each with its own fields. Memory is allocated only for as many items as
  // the rest of the payload can hold: else "truncated_message".
  template <typename Item, typename ItemFields>
  void List(std::vector<Item>& items, uint32_t max_count, const char* too_many,
            const ItemFields& fields) {
    FieldSizer least;
    const Item empty{};
    fields(least, empty);
    items.resize(CountOf(max_count, least.bytes(), too_many));
    for (Item& item : items) fields(*this, item);
  }
  // A u16 length, then plain text; else "text_too_long", "bad_text".
  void Text(std::string& text, size_t max_bytes);
  // A u16 length, then any bytes: texts for people, whose reader shows them escaped. The writer
  // cuts them to `max_bytes`.
  void CutText(std::string& text, size_t max_bytes);
  // A u32 length, then any bytes; more than `max_bytes` is kLimitExceeded `too_long`.
  void LongText(std::string& text, uint32_t max_bytes, const char* too_long);
  template <typename Record>
  void Nested(Record& record, uint32_t max_bytes, const char* too_long) {
    const std::span<const std::byte> encoded = Take(CountOf(max_bytes, 1, too_long));
    if (error_) return;
    Result<Record> decoded = Record::Decode(encoded);
    if (decoded) {
      record = *std::move(decoded);
    } else {
      error_ = std::move(decoded).error();
    }
  }
  // A condition that the fields read so far must meet; else kInvalidArgument `reason` with the
  // value, or with the text that it makes.
  template <typename Value>
  void Check(bool holds, const char* reason, const Value& value) {
    if (holds || error_) [[likely]]
      return;
    if constexpr (std::is_invocable_v<Value>) {
      Fail(reason, value());
    } else {
      Fail(reason, ValueText(static_cast<double>(value)));
    }
  }

  // The first error, "trailing_bytes" if something was not read, or success.
  [[nodiscard]] Status Finish();

 private:
  // The next bytes, or nothing when fewer remain.
  std::span<const std::byte> Take(size_t bytes) {
    if (bytes > rest_.size() || error_) [[unlikely]] {
      FailTruncated(bytes);
      return {};
    }
    const std::span<const std::byte> taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  [[nodiscard]] uint32_t CountOf(uint32_t max_count, size_t item_bytes, const char* too_many);
  void Fail(const char* reason, const std::string& why);
  [[nodiscard]] std::string ValueText(double value) const;
  void FailTruncated(uint64_t needed);

  const MessageType type_;
  std::span<const std::byte> rest_;
  std::optional<Error> error_;
};

// A LoadCounter's.
void CounterFields(auto& io, auto& counter) {
  io.Number(counter.offset);
  io.Number(counter.base);
  io.Number(counter.steps);
  io.Check(counter.offset % sizeof(uint32_t) == 0, "bad_counter", counter.offset);
  io.Check(counter.steps > 0, "bad_counter", counter.steps);
}

template <typename Message>
Status TryEncode(const Message& message, uint64_t request_id, std::vector<std::byte>* out,
                 uint16_t flags) {
  FieldSizer sizer;
  Fields(sizer, message);
  if (sizer.passed()) return tl::unexpected(sizer.passed()->In(Message::kType));
  KVT_CHECK(sizer.bytes() <= UINT32_MAX);
  const size_t begin = out->size();
  out->resize(begin + kFrameHeaderBytes + sizer.bytes());
  FieldWriter writer(out->data() + begin);
  writer.Number(static_cast<uint32_t>(sizer.bytes()));
  writer.Number(static_cast<uint16_t>(Message::kType));
  writer.Number(flags);
  writer.Number(request_id);
  Fields(writer, message);
  return {};
}

template <typename Message>
Result<Message> Decode(std::span<const std::byte> payload) {
  FieldReader reader(Message::kType, payload);
  Message message;
  Fields(reader, message);
  KVT_RETURN_IF_ERROR(reader.Finish());
  return message;
}

// Defines TryEncode and Decode of a message whose fields were listed above it.
#define KVT_DEFINE_MESSAGE(Message)                                                       \
  template Status TryEncode(const Message&, uint64_t, std::vector<std::byte>*, uint16_t); \
  template Result<Message> Decode<Message>(std::span<const std::byte>)

}  // namespace kvtier::wire
