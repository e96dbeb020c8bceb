#include "support/sim_device/span.h"

#include <algorithm>
#include <functional>

namespace tessera::testing::sim {

Span::Span(const void* begin, std::size_t num_bytes) : begin_(static_cast<const char*>(begin)), run_(num_bytes) {}

Span::Span(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  begin_ = static_cast<const char*>(tensor.const_data_ptr());
  run_ = tensor.itemsize();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    // An expanded dimension means the same bytes again.
    if (tensor.size(d) == 1 || tensor.stride(d) == 0) continue;
    dims_.push_back(
        {static_cast<std::size_t>(tensor.size(d)), static_cast<std::size_t>(tensor.stride(d)) * tensor.itemsize()});
  }
  std::ranges::sort(dims_, std::greater<>(), &Dim::distance);
  while (!dims_.empty() && dims_.back().distance <= run_) {
    run_ = dims_.back().distance * (dims_.back().size - 1) + run_;
    dims_.pop_back();
  }
}

const char* Span::end() const {
  const char* last = begin_;
  for (const Dim& dim : dims_) last += (dim.size - 1) * dim.distance;
  return last + run_;
}

Span::Runs Span::runs_between(const char* from, const char* to) const {
  Runs runs{begin_};
  std::size_t reach = static_cast<std::size_t>(end() - begin_);
  for (const Dim& dim : dims_) {
    reach -= (dim.size - 1) * dim.distance;  // of what lies at one index of this dimension
    Runs more;
    for (const char* const run : runs) {
      for (std::size_t i = 0; i < dim.size; ++i) {
        const char* const begin = run + i * dim.distance;
        if (begin < to && from < begin + reach) more.push_back(begin);
      }
    }
    runs = std::move(more);
  }
  std::ranges::sort(runs);
  return runs;
}

bool Span::touches(const Span& other) const {
  if (is_empty() || other.is_empty()) return false;
  const char* const from = std::max(begin_, other.begin_);
  const char* const to = std::min(end(), other.end());
  if (from >= to) return false;
  if (is_dense() && other.is_dense()) return true;
  const Runs mine = runs_between(from, to);
  const Runs others = other.runs_between(from, to);
  for (auto one = mine.begin(), two = others.begin(); one != mine.end() && two != others.end();) {
    if (*one < *two + other.run_ && *two < *one + run_) return true;
    *one < *two ? ++one : ++two;
  }
  return false;
}

bool Span::covers(const Span& other) const { return is_dense() && begin_ <= other.begin_ && other.end() <= end(); }

}  // namespace tessera::testing::sim
