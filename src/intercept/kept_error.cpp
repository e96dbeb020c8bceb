#include <tessera/intercept/kept_error.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::intercept {
namespace {

/// The errors of the process that are kept. As a rule there are none, and nobody takes the lock.
struct AllKept {
  std::atomic<int> count = 0;
  std::mutex mutex;
  std::vector<KeptError*> errors;
};

AllKept& all_kept() {
  static AllKept all;
  return all;
}

}  // namespace

void KeptError::keep(std::exception_ptr error) {
  drop();
  error_ = std::move(error);
  thread_ = std::this_thread::get_id();
  AllKept& all = all_kept();
  const std::lock_guard lock(all.mutex);
  all.errors.push_back(this);
  ++all.count;
}

void KeptError::drop() noexcept {
  if (!std::exchange(error_, nullptr)) return;
  AllKept& all = all_kept();
  const std::lock_guard lock(all.mutex);
  std::erase(all.errors, this);
  --all.count;
}

void KeptError::raise() {
  if (!error_) return;
  const std::exception_ptr error = error_;
  drop();
  std::rethrow_exception(error);
}

void raise_kept_errors() {
  AllKept& all = all_kept();
  if (all.count == 0) return;
  KeptError* mine = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = std::find_if(all.errors.begin(), all.errors.end(),
                                    [](const KeptError* kept) { return kept->thread_ == std::this_thread::get_id(); });
    if (found == all.errors.end()) return;
    mine = *found;  // only this thread ends it
  }
  mine->raise();
}

}  // namespace tessera::intercept
