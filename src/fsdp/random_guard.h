#pragma once

#include <tessera/intercept/watch.h>

#include <exception>
#include <functional>
#include <string_view>
#include <thread>

namespace tessera::fsdp {

/// Reproducible mode: watches parameters that stay whole, and refuses operators that draw random numbers from the first
/// use of a parameter to the end of backward.
/// Thread-safety: of the thread that made it. Other threads' operators are none of its business.
class RandomGuard : public intercept::Listener {
 public:
  /// `on_whole_use`: an operator takes a parameter that stays whole.
  RandomGuard(int world_rank, std::function<void(const intercept::Use&)> on_whole_use);

  void begin() { is_active_ = true; }
  void end() { is_active_ = false; }
  /// Throws the refusal that is kept, if there is one: what a callback throws is lost.
  void raise();

  void on_use(const intercept::Use& use) override;
  void on_operator(std::string_view operator_name) override;

 private:
  int world_rank_;
  std::function<void(const intercept::Use&)> on_whole_use_;
  std::thread::id thread_ = std::this_thread::get_id();
  bool is_active_ = false;
  std::exception_ptr refusal_;
};

}  // namespace tessera::fsdp
