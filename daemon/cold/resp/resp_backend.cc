// SPDX-License-Identifier: Apache-2.0
// The library for servers that speak RESP. Questions, reads and writes have a connection each, so
// that a short answer does not stand behind a long one.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "daemon/cold/backend_table.h"
#include "daemon/cold/cold_backend.h"
#include "daemon/cold/resp/resp_connection.h"
#include "daemon/cold/resp/resp_lane.h"
#include "daemon/cold/tenant_line.h"
#include "daemon/cold/unsure_puts.h"

namespace kvtier {
namespace {

// Names that the server looks at for one answer; few of them may be the tenant's.
constexpr const char* kListedAtOnce = "512";
// Names of a call that asks for some.
constexpr size_t kAskedAtOnce = 256;
// Parts of a list; one of more, which is of five hundred million names, has no end.
constexpr uint64_t kMostLists = uint64_t{1} << 20;

// How a call ends; its lane's thread alone touches it.
struct Outcome {
  int status = KVT_COLD_OK;
  std::string data;
  size_t bytes = 0;  // of a get
  std::string why;   // it failed

  // Returns whether the reply is of that kind. Else the call has failed: the first reason counts.
  bool Expect(RespReply::Kind kind, const RespReply& reply, int failed = KVT_COLD_REFUSED) {
    if (reply.kind == kind) return true;
    Fail(failed, reply.error.empty() ? "the server's answer is of another kind" : reply.error);
    return false;
  }
  void Fail(int failed, std::string_view reason) {
    if (status != KVT_COLD_OK) return;
    status = failed;
    why = reason;
  }
};

class RespStore {
 public:
  RespStore(const RespEndpoint& endpoint, kvt_cold_done done, void* context)
      : done_(done), context_(context), questions_(endpoint), reads_(endpoint), writes_(endpoint) {}

  // All three at once, since each may need a second to end.
  [[nodiscard]] bool Stop() {
    questions_.Interrupt();
    reads_.Interrupt();
    writes_.Interrupt();
    return true;
  }

  // A store that refuses questions is of no use, and counts as away, so that its reason is told. A
  // long question is sent in parts, so that it keeps the server from no other tenant's.
  void Exists(uint64_t number, const std::vector<std::string>& names, bool /*each*/,
              int64_t timeout_ms) {
    const auto outcome = std::make_shared<Outcome>();
    outcome->data.resize(names.size());
    const auto left = std::make_shared<size_t>(std::max<size_t>(names.size(), 1));
    std::vector<RespCall> calls;
    size_t first = 0;
    do {
      const size_t count = std::min(names.size() - first, kAskedAtOnce);
      RespCall call = Begin(number, timeout_ms, outcome);
      call.tenant = names.empty() ? std::string() : TenantOf(names.front());
      for (size_t i = first; i < first + count; ++i) AddCommand(&call, {"EXISTS", names[i]});
      call.answered = [outcome, first](size_t position, const RespReply& reply) {
        if (!outcome->Expect(RespReply::Kind::kInteger, reply, KVT_COLD_UNAVAILABLE)) return;
        outcome->data[first + position] = reply.integer == 1 ? 1 : 0;
      };
      call.ended = [outcome, left, count, end = std::move(call.ended)](int status,
                                                                       const std::string& failure) {
        if (status != KVT_COLD_OK) outcome->Fail(status, failure);
        *left -= std::max<size_t>(count, 1);
        if (*left == 0) end(KVT_COLD_OK, {});
      };
      calls.push_back(std::move(call));
      first += count;
    } while (first < names.size());
    questions_.AddAll(std::move(calls));
  }

  // A range, so that an object of another size is not read whole. An object that is not there has
  // an empty one.
  void Get(uint64_t number, const std::string& name, void* into, uint64_t bytes,
           int64_t timeout_ms) {
    const auto outcome = std::make_shared<Outcome>();
    RespCall call = Begin(number, timeout_ms, outcome);
    call.tenant = TenantOf(name);
    AddCommand(&call, {"GETRANGE", name, "0", std::to_string(bytes)});
    call.into = {static_cast<std::byte*>(into), bytes + 1};
    call.answered = [outcome](size_t, const RespReply& reply) {
      outcome->bytes = reply.bytes;
      if (!outcome->Expect(RespReply::Kind::kText, reply)) return;
      if (reply.bytes == 0) outcome->status = KVT_COLD_ABSENT;
    };
    reads_.Add(std::move(call));
  }

  void Put(uint64_t number, const std::string& name, const void* data, size_t bytes, int64_t ttl_s,
           int64_t timeout_ms) {
    const auto outcome = std::make_shared<Outcome>();
    RespCall call = Begin(number, timeout_ms, outcome);
    AddCommand(&call, {"SET", name, "", "EX", std::to_string(ttl_s)});
    call.payload = {static_cast<const char*>(data), bytes};
    call.answered = [outcome](size_t, const RespReply& reply) {
      outcome->Expect(RespReply::Kind::kText, reply);
    };
    call.left_unsure = [this, name] { unsure_.Add(name); };
    writes_.Add(std::move(call));
  }

  void Remove(uint64_t number, const std::vector<std::string>& names, int64_t timeout_ms) {
    const auto outcome = std::make_shared<Outcome>();
    RespCall call = Begin(number, timeout_ms, outcome);
    for (const std::string& name : names) AddCommand(&call, {"UNLINK", name});
    call.answered = [outcome](size_t, const RespReply& reply) {
      outcome->Expect(RespReply::Kind::kInteger, reply);
    };
    call.ended = [this, names, outcome, end = std::move(call.ended)](int status,
                                                                     const std::string& failure) {
      const auto may_come = [this](const std::string& name) { return unsure_.MayCome(name); };
      if (std::ranges::any_of(names, may_come)) outcome->Fail(KVT_COLD_BUSY, UnsurePuts::kWhy);
      end(status, failure);
    };
    writes_.Add(std::move(call));
  }

  // Two calls: the names that the server lists next, and their deletion. All of them are deleted
  // even if the erasure cannot end well.
  void RemoveSome(uint64_t number, const std::string& prefix, uint64_t cursor, int64_t timeout_ms) {
    const auto outcome = std::make_shared<Outcome>();
    const auto names = std::make_shared<std::vector<std::string>>();
    lists_ = cursor == 0 ? 0 : lists_ + 1;
    RespCall call = Begin(number, timeout_ms, outcome);
    AddCommand(&call,
               {"SCAN", std::to_string(cursor), "MATCH", prefix + '*', "COUNT", kListedAtOnce});
    call.answered = [outcome, names, prefix, cursor, is_endless = lists_ > kMostLists](
                        size_t, const RespReply& reply) {
      if (!outcome->Expect(RespReply::Kind::kList, reply)) return;
      if (is_endless || !IsNextPart(reply.texts, prefix, cursor, outcome.get())) {
        return outcome->Fail(KVT_COLD_REFUSED, "the server's list is not to be read");
      }
      names->assign(reply.texts.begin() + 1, reply.texts.end());
    };
    call.ended = [=, this, end = std::move(call.ended)](int status, const std::string& failure) {
      if (status != KVT_COLD_OK || outcome->status != KVT_COLD_OK) return end(status, failure);
      const bool may_come = unsure_.MayComeInErasure(prefix, cursor == 0);
      RespCall removal = Begin(number, timeout_ms, outcome);
      for (const std::string& name : *names) AddCommand(&removal, {"UNLINK", name});
      removal.answered = [outcome](size_t, const RespReply& reply) {
        outcome->Expect(RespReply::Kind::kInteger, reply);
      };
      removal.ended = [=, end = std::move(removal.ended)](int failed, const std::string& reason) {
        const bool is_last = outcome->data == std::string(sizeof(uint64_t), '\0');
        if (may_come && is_last) outcome->Fail(KVT_COLD_BUSY, UnsurePuts::kWhy);
        end(failed, reason);
      };
      writes_.Add(std::move(removal));
    };
    // After all writes that were sent before.
    writes_.Add(std::move(call));
  }
  // Calls begin at once.
  void Send() {}

 private:
  // Makes the first text, a number, the call's data. Nothing is deleted by the word of a server
  // that lists other names than was asked for, and none is asked for ever.
  [[nodiscard]] static bool IsNextPart(const std::vector<std::string>& texts,
                                       const std::string& prefix, uint64_t asked,
                                       Outcome* outcome) {
    if (texts.empty()) return false;
    const std::string& text = texts.front();
    uint64_t cursor = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cursor);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    outcome->data.assign(reinterpret_cast<const char*>(&cursor), sizeof(cursor));
    return (cursor == 0 || cursor != asked) &&
           std::all_of(texts.begin() + 1, texts.end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  }
  static void AddCommand(RespCall* call, std::vector<std::string> words) {
    call->lengths.push_back(words.size());
    for (std::string& word : words) call->words.push_back(std::move(word));
  }
  [[nodiscard]] RespCall Begin(uint64_t number, int64_t timeout_ms,
                               const std::shared_ptr<Outcome>& outcome) const {
    RespCall call;
    call.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    call.ended = [this, number, outcome](int failed, const std::string& failure) {
      const int status = failed == KVT_COLD_OK ? outcome->status : failed;
      const std::string& why = failed == KVT_COLD_OK ? outcome->why : failure;
      const std::string& data = status == KVT_COLD_OK ? outcome->data : why;
      done_(context_, number, status, data.empty() ? nullptr : data.data(),
            data.empty() ? outcome->bytes : data.size(), 0);
    };
    return call;
  }

  const kvt_cold_done done_;
  void* const context_;
  UnsurePuts unsure_;
  uint64_t lists_ = 0;  // that the erasure under way has asked for
  RespLane questions_;
  RespLane reads_;
  RespLane writes_;
};

void* Open(const kvt_cold_config* config, kvt_cold_done done, void* context) {
  std::optional<RespEndpoint> endpoint = RespEndpoint::Parse(config->endpoint);
  if (!endpoint) return nullptr;
  endpoint->user = config->user;
  endpoint->password = config->password;
  return std::make_unique<RespStore>(*endpoint, done, context).release();
}

constexpr kvt_cold_backend kBackend = BackendTable<RespStore>::With(Open);

}  // namespace
}  // namespace kvtier

// The one symbol that can be seen from outside.
__attribute__((visibility("default"))) const kvt_cold_backend* kvt_cold_backend_table(
    uint32_t abi) {
  return abi == KVT_COLD_ABI ? &kvtier::kBackend : nullptr;
}
