// SPDX-License-Identifier: Apache-2.0
// Reading JSON documents of other programs: absent members read as nothing, never as an exception.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier {

// A place in a document, or nowhere. Borrows the document. Include from .cc files only.
class JsonView {
 public:
  explicit JsonView(const boost::json::value* value = nullptr) : value_(value) {}

  // The value in view; null for nowhere, or if it is not an object.
  [[nodiscard]] const boost::json::value* value() const { return value_; }
  [[nodiscard]] const boost::json::object* object() const {
    return value_ != nullptr ? value_->if_object() : nullptr;
  }
  [[nodiscard]] bool present() const { return value_ != nullptr; }
  // The member; a view of nothing if there is none.
  [[nodiscard]] JsonView operator[](std::string_view member) const {
    const boost::json::object* members = object();
    return JsonView(members != nullptr ? members->if_contains(member) : nullptr);
  }
  [[nodiscard]] uint64_t Count() const {
    const double number = Number();
    return number > 0 ? static_cast<uint64_t>(number) : 0;
  }
  [[nodiscard]] double Number() const {
    if (value_ == nullptr || !value_->is_number()) return 0;
    boost::json::error_code error;
    const auto number = value_->to_number<double>(error);
    return error ? 0 : number;
  }
  [[nodiscard]] bool IsTrue() const {
    return value_ != nullptr && value_->is_bool() && value_->get_bool();
  }
  [[nodiscard]] std::string Text() const {
    const boost::json::string* text = value_ != nullptr ? value_->if_string() : nullptr;
    return text != nullptr ? std::string(*text) : std::string();
  }
  // Calls `visit` with each element of an array.
  template <typename Visit>
  void ForEach(Visit visit) const {
    const boost::json::array* array = value_ != nullptr ? value_->if_array() : nullptr;
    if (array == nullptr) return;
    for (const boost::json::value& element : *array) visit(JsonView(&element));
  }

 private:
  const boost::json::value* value_;
};

}  // namespace kvtier
