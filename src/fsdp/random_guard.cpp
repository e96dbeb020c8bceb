#include "fsdp/random_guard.h"

#include <tessera/intercept/random_draws.h>
#include <tessera/shard/reproducible.h>

#include <utility>

namespace tessera::fsdp {

RandomGuard::RandomGuard(int world_rank, std::function<void(const intercept::Use&)> on_whole_use)
    : world_rank_(world_rank), on_whole_use_(std::move(on_whole_use)) {}

void RandomGuard::raise() {
  if (refusal_) std::rethrow_exception(std::exchange(refusal_, nullptr));
}

void RandomGuard::on_use(const intercept::Use& use) {
  if (std::this_thread::get_id() == thread_) on_whole_use_(use);
}

void RandomGuard::on_operator(std::string_view operator_name) {
  // First of all the thread: the rest may be written by its own meanwhile.
  if (std::this_thread::get_id() != thread_ || !is_active_ || refusal_) return;
  if (!intercept::draws_random_numbers(operator_name)) return;
  refusal_ = std::make_exception_ptr(refusal_of_random_operator(operator_name, world_rank_));
}

}  // namespace tessera::fsdp
