// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/retries.h"

#include <utility>

#include "base/clock.h"

namespace kvtier {

void Retries::Add(const std::string& tenant, Try attempt) {
  Line& line = lines_.try_emplace(tenant, this, tenant).first->second;
  line.waiting.push_back({MonotonicUs() + patience_ms_ * 1000, std::move(attempt)});
  if (!tick_.running()) tick_.Start(kAgainMs, [this] { Tick(); });
}

void Retries::Tick() {
  std::erase_if(lines_, [](const auto& line) { return line.second.waiting.empty(); });
  for (auto& [tenant, line] : lines_) line.member.Ready();
  if (!lines_.empty()) tick_.Start(kAgainMs, [this] { Tick(); });
}

uint32_t Retries::TakeTurn(Line* line, uint32_t quantum) {
  uint32_t spent = 0;
  std::list<Waiting>& waiting = line->waiting;
  while (!waiting.empty() && waiting.front().until_us <= MonotonicUs()) {
    if (spent >= quantum) {
      line->member.Ready();
      return spent;
    }
    spent += TryOne(line, waiting.begin(), /*over=*/true).price;
  }
  Outcome tried;
  while (!waiting.empty() && !tried.waits && tried.price == 0) {
    if (line->next == waiting.end()) line->next = waiting.begin();
    tried = TryOne(line, line->next, /*over=*/false);
  }
  return spent + tried.price;
}

Retries::Outcome Retries::TryOne(Line* line, std::list<Waiting>::iterator one, bool over) {
  if (line->next == one) ++line->next;
  const Outcome outcome = one->attempt(over);
  if (over || !outcome.waits) line->waiting.erase(one);
  return outcome;
}

}  // namespace kvtier
