// SPDX-License-Identifier: Apache-2.0
// A gate guards the life of an object whose work goes on in callbacks: it counts those that are
// inside, refuses entry once it was closed, and says when the last one has left.
//
//   class Loader {
//     void Load(...) {
//       // The read must end before the loader is destroyed: it writes to the loader's buffer.
//       file->Read(..., gate_.Hold([this](Status read) { OnRead(read); }));
//       // This event may come too late: it then does nothing.
//       loop->Post(gate_.WhileOpen([this] { Pump(); }));
//     }
//     Gate gate_;  // last member: closes before the callbacks' data is destroyed
//   };
//
// Everything belongs to one thread, the event loop's. The two exceptions are named below: a Pass,
// and the result of WhileOpen, may be copied, moved and destroyed on any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace kvtier {

class Gate {
  struct State {
    size_t holders = 0;
    bool closed = false;
    std::function<void()> on_empty;
  };

 public:
  // Counts as one that is inside, until it is destroyed or Leave is called. Move-only. The last to
  // leave a closed gate calls what Close was given; the gate and its owner may be destroyed there.
  class Holder {
   public:
    Holder() = default;
    Holder(Holder&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    Holder& operator=(Holder&& other) noexcept {
      if (this != &other) {
        Leave();
        state_ = std::exchange(other.state_, nullptr);
      }
      return *this;
    }
    ~Holder() { Leave(); }

    [[nodiscard]] bool inside() const { return state_ != nullptr; }
    void Leave() {
      State* const state = std::exchange(state_, nullptr);
      if (state == nullptr || --state->holders > 0 || !state->closed) return;
      // The callback may destroy the gate, and the state with it.
      if (const auto on_empty = std::exchange(state->on_empty, nullptr)) on_empty();
    }

   private:
    friend class Gate;
    explicit Holder(State* state) : state_(state) { ++state_->holders; }
    State* state_ = nullptr;
  };

  // Tells whether the gate is still open, without keeping it so: for events that may run when the
  // gate's owner is gone. Copies may be made and destroyed on any thread; open() belongs to the
  // gate's thread.
  class Pass {
   public:
    // No gate: never open.
    Pass() = default;
    [[nodiscard]] bool open() const {
      const std::shared_ptr<State> state = state_.lock();
      return state != nullptr && !state->closed;
    }
    // Empty if the gate is closed or gone.
    [[nodiscard]] std::optional<Holder> TryEnter() const {
      const std::shared_ptr<State> state = state_.lock();
      if (state == nullptr || state->closed) return std::nullopt;
      return Holder(state.get());
    }

   private:
    friend class Gate;
    explicit Pass(const std::shared_ptr<State>& state) : state_(state) {}
    std::weak_ptr<State> state_;
  };

  Gate() : state_(std::make_shared<State>()) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // REQUIRES: none is inside. It need not have been closed: from now on no pass is valid.
  ~Gate() {
    KVT_CHECK(state_->holders == 0);
    // A pass that is being asked on this very stack must not see the gate as open.
    state_->closed = true;
  }

  // REQUIRES: not closed.
  [[nodiscard]] Holder Enter() {
    KVT_CHECK(!state_->closed);
    return Holder(state_.get());
  }
  // Empty after Close.
  [[nodiscard]] std::optional<Holder> TryEnter() {
    if (state_->closed) return std::nullopt;
    return Holder(state_.get());
  }
  [[nodiscard]] Pass MakePass() const { return Pass(state_); }

  // From now on nothing enters. `on_empty`, if given, is called once: before Close returns if none
  // is inside, otherwise by the last that leaves. REQUIRES: not closed.
  void Close(std::function<void()> on_empty = nullptr) {
    KVT_CHECK(!state_->closed);
    state_->closed = true;
    if (state_->holders > 0) {
      state_->on_empty = std::move(on_empty);
    } else if (on_empty) {
      on_empty();
    }
  }

  [[nodiscard]] bool closed() const { return state_->closed; }
  [[nodiscard]] size_t holders() const { return state_->holders; }

  // `callback`, being inside until the last copy of the returned one is destroyed, which must
  // happen on the gate's thread. REQUIRES: not closed.
  template <typename Callback>
  [[nodiscard]] auto Hold(Callback callback) {
    // Shared, because std::function copies its target and a holder cannot be copied.
    return [holder = std::make_shared<Holder>(Enter()),
            callback = std::move(callback)](auto&&... arguments) mutable {
      return callback(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // `callback`, which does nothing when it is called after Close or the gate's end. It may be moved
  // between threads; the call itself belongs to the gate's thread.
  template <typename Callback>
  [[nodiscard]] auto WhileOpen(Callback callback) const {
    return [pass = MakePass(), callback = std::move(callback)](auto&&... arguments) mutable {
      if (pass.open()) callback(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  // Passes share it weakly; holders do without, since the gate outlives them.
  const std::shared_ptr<State> state_;
};

}  // namespace kvtier
