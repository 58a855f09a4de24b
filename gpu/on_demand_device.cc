// SPDX-License-Identifier: Apache-2.0
#include "gpu/on_demand_device.h"

#include <optional>

#include "base/result.h"

namespace kvtier {

Status OnDemandDevice::OpenNow() {
  const PinGate::Urgent urgent(environment_.pinner->opening());
  KVT_ASSIGN_OR_RETURN(device_, environment_.open());
  environment_.pinner->Begin();
  return {};
}

void OnDemandDevice::WhenOpen(std::function<void(Status)> done) {
  if (is_open()) return done({});
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  const auto opened = std::make_shared<std::optional<Result<std::unique_ptr<Device>>>>();
  const auto open = [opened, open = environment_.open, gate = environment_.pinner->opening()] {
    const PinGate::Urgent urgent(gate);
    *opened = open();
  };
  environment_.executor->Run(open,
                             gate_.WhileOpen([this, opened] { OnOpened(std::move(**opened)); }));
}

void OnDemandDevice::OnOpened(Result<std::unique_ptr<Device>> opened) {
  Status outcome;
  if (opened) {
    device_ = *std::move(opened);
    environment_.pinner->Begin();
  } else {
    outcome = tl::unexpected(opened.error());
  }
  if (environment_.on_opened) environment_.on_opened(outcome);
  for (const auto& done : std::exchange(waiting_, {})) done(outcome);
}

Status OnDemandDevice::CheckOpen() const {
  if (is_open()) return {};
  return MakeError(ErrorCode::kWrongState, "device_not_open", info_.name);
}

Result<std::unique_ptr<DevicePool>> OnDemandDevice::CreatePool(uint64_t bytes) {
  KVT_RETURN_IF_ERROR(CheckOpen());
  const PinGate::Urgent urgent(environment_.pinner->opening());
  return device_->CreatePool(bytes);
}

Result<std::unique_ptr<DevicePool>> OnDemandDevice::AdoptPool(UniqueFd fd, uint64_t bytes) {
  KVT_RETURN_IF_ERROR(CheckOpen());
  const PinGate::Urgent urgent(environment_.pinner->opening());
  return device_->AdoptPool(std::move(fd), bytes);
}

Result<std::unique_ptr<DevicePool>> OnDemandDevice::Borrow(LentMemory* memory) {
  KVT_RETURN_IF_ERROR(CheckOpen());
  if (memory->mapped) return std::unique_ptr<DevicePool>(memory->mapped.release());
  const PinGate::Urgent urgent(environment_.pinner->opening());
  return device_->Borrow(memory);
}

void OnDemandDevice::Map(std::shared_ptr<LentMemory> memory, std::function<void(Status)> done) {
  if (const Status open = CheckOpen(); !open) return done(open);
  if (memory->kind == LentMemory::Kind::kShared) return done({});
  const auto outcome = std::make_shared<Status>();
  const auto map = [this, lent = memory.get(), outcome] {
    const PinGate::Urgent urgent(environment_.pinner->opening());
    Result<std::unique_ptr<DevicePool>> mapped = device_->Borrow(lent);
    if (mapped) {
      lent->mapped = {mapped->release(), [executor = environment_.executor](DevicePool* pool) {
                        executor->Run([pool] { delete pool; }, nullptr);
                      }};
    }
    if (!mapped) *outcome = tl::unexpected(mapped.error());
  };
  // The event alone keeps the memory, so that the event loop ends it.
  environment_.executor->Run(map, [memory, outcome, done = std::move(done)] { done(*outcome); });
}

void OnDemandDevice::Copy(CopyRequest request) {
  KVT_CHECK(is_open());  // a copy needs a pool, and a pool an open device
  device_->Copy(std::move(request));
}

void OnDemandDevice::AwaitBackground(bool awaited) {
  if (is_open()) device_->AwaitBackground(awaited);
}

uint64_t OnDemandDevice::unreachable_counter_pages() const {
  return is_open() ? device_->unreachable_counter_pages() : 0;
}

}  // namespace kvtier
