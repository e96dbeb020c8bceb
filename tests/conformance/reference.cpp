#include "conformance/reference.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

namespace tessera::testing {
namespace {

at::ScalarType wide(at::ScalarType dtype) { return at::isFloatingType(dtype) ? at::kDouble : at::kLong; }

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 0x1p-23;
    case at::kDouble:
      return 0x1p-52;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return 0;
  }
}

at::Tensor reduced(const Inputs& inputs, ReduceOp op) {
  const auto type = wide(inputs.of_rank.front().scalar_type());
  at::Tensor result = inputs.of_rank.front().to(type);
  for (std::size_t rank = 1; rank < inputs.of_rank.size(); ++rank) {
    const at::Tensor next = inputs.of_rank[rank].to(type);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result = result + next;
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kProduct:
        result = result * next;
        break;
    }
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(inputs.of_rank.size());
  return result;
}

constexpr std::int64_t kPeriod = 10;

std::vector<at::Tensor> one_period(at::ScalarType dtype, int num_ranks, ReduceOp op) {
  const bool is_product = op == ReduceOp::kProduct;
  const auto index = at::arange(kPeriod, at::kLong);
  std::vector<at::Tensor> of_rank;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto values = (index * 7 + (rank * 3 + 1)).remainder(is_product ? 2 : 5);
    of_rank.push_back((is_product ? values + 1 : values).to(dtype));
  }
  return of_rank;
}

std::vector<at::Tensor> random_values(at::ScalarType dtype, std::int64_t count, int num_ranks) {
  std::vector<at::Tensor> of_rank;
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1234 + rank));
    of_rank.push_back(at::randn({count}, generator, at::kFloat).to(dtype));
  }
  return of_rank;
}

/// With what must come of them.
Inputs finished(std::vector<at::Tensor> of_rank, bool exact, ReduceOp op) {
  Inputs inputs;
  inputs.of_rank = std::move(of_rank);
  inputs.exact = exact;
  inputs.op = op;
  inputs.expected = reduced(inputs, op);
  if (exact && op != ReduceOp::kAvg) return inputs;
  at::Tensor magnitude = at::zeros_like(inputs.expected, at::kDouble);
  for (const auto& input : inputs.of_rank) magnitude += input.to(at::kDouble).abs();
  const double n = static_cast<double>(inputs.of_rank.size());
  const double share = op == ReduceOp::kAvg ? 1.0 : n;
  inputs.allowed = magnitude.mul_(share * epsilon(inputs.of_rank.front().scalar_type())).add_(1e-300);
  return inputs;
}

Inputs made(at::ScalarType dtype, std::int64_t count, int num_ranks, bool exact, ReduceOp op) {
  if (!exact) return finished(random_values(dtype, count, num_ranks), false, op);
  // What is exact repeats itself, and so does what comes of it: one period is computed, for all elements of all ranks.
  Inputs inputs = finished(one_period(dtype, num_ranks, op), true, op);
  const auto repeat = [count](at::Tensor& values) {
    if (values.defined()) values = values.repeat({(count + kPeriod - 1) / kPeriod}).narrow(0, 0, count);
  };
  for (at::Tensor& values : inputs.of_rank) repeat(values);
  repeat(inputs.expected);
  repeat(inputs.allowed);
  return inputs;
}

/// How far the one that is furthest beyond what is allowed is off; nothing when none is.
template <typename T>
std::optional<double> worst(const at::Tensor& got, const at::Tensor& expected, const at::Tensor& allowed) {
  const T* values = got.const_data_ptr<T>();
  const double* aims = expected.const_data_ptr<double>();
  const double* limits = allowed.const_data_ptr<double>();
  std::optional<double> result;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double off = std::abs(static_cast<double>(values[i]) - aims[i]);
    if (!(off <= limits[i])) result = std::max(result.value_or(0), off);  // also for what is no number
  }
  return result;
}

}  // namespace

namespace {

Inputs inputs_on_cpu(at::ScalarType dtype, std::int64_t count, int num_ranks, bool exact, ReduceOp op) {
  using Key = std::tuple<at::ScalarType, std::int64_t, int, bool, ReduceOp>;
  constexpr std::size_t kKept = 4;  // ranks that are threads are a few cases apart at most
  static std::mutex mutex;
  static std::deque<std::pair<Key, Inputs>> kept;
  const Key key{dtype, count, num_ranks, exact, op};
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& one) { return one.first == key; });
  if (found != kept.end()) return found->second;
  kept.emplace_back(key, made(dtype, count, num_ranks, exact, op));
  if (kept.size() > kKept) kept.pop_front();
  return kept.back().second;
}

}  // namespace

Inputs make_inputs(at::ScalarType dtype, std::int64_t count, int num_ranks, bool exact, ReduceOp op,
                   const at::Device& device) {
  Inputs inputs = inputs_on_cpu(dtype, count, num_ranks, exact, op);
  for (at::Tensor& values : inputs.of_rank) values = values.to(device);
  return inputs;
}

std::string compare_reduced(const at::Tensor& found, const Inputs& inputs, std::int64_t begin) {
  const at::Tensor got = found.cpu();
  const auto dtype = inputs.of_rank.front().scalar_type();
  if (got.scalar_type() != dtype) return "the type changed";
  const at::Tensor flat = got.reshape({-1});
  const at::Tensor expected = inputs.expected.narrow(0, begin, got.numel());
  if (!inputs.allowed.defined()) return compare_equal(flat, expected.to(dtype));
  const at::Tensor allowed = inputs.allowed.narrow(0, begin, got.numel());
  std::optional<double> off;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "compare_reduced",
                                  [&] { off = worst<scalar_t>(flat.contiguous(), expected, allowed); });
  return off ? "off by " + std::to_string(*off) + ", which is more than rounding explains" : "";
}

std::string compare_equal(const at::Tensor& found, const at::Tensor& wanted) {
  if (!found.defined()) return "no tensor";
  const at::Tensor got = found.cpu();
  const at::Tensor expected = wanted.cpu();
  if (got.sizes() != expected.sizes()) {
    std::ostringstream text;
    text << "shape " << got.sizes() << ", expected " << expected.sizes();
    return text.str();
  }
  if (got.scalar_type() != expected.scalar_type()) return "the type changed";
  if (at::equal(got, expected)) return "";
  const auto first = (got != expected).reshape({-1}).nonzero().index({0}).item<std::int64_t>();
  std::ostringstream text;
  text << "element " << first << " is " << got.reshape({-1})[first].item<double>() << ", expected "
       << expected.reshape({-1})[first].item<double>();
  return text.str();
}

std::vector<std::int64_t> ceiling_pieces(std::int64_t count, int num_ranks) {
  const std::int64_t chunk = (count + num_ranks - 1) / num_ranks;
  std::vector<std::int64_t> pieces;
  for (std::int64_t left = count; static_cast<int>(pieces.size()) < num_ranks; left -= pieces.back()) {
    pieces.push_back(std::min(chunk, left));
  }
  return pieces;
}

}  // namespace tessera::testing
