#include "conformance/reference.h"

#include <algorithm>
#include <sstream>

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

}  // namespace

Inputs make_inputs(at::ScalarType dtype, std::int64_t count, int num_ranks, bool exact, ReduceOp op) {
  Inputs inputs;
  inputs.exact = exact;
  const auto index = at::arange(count, at::kLong);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (exact) {
      auto values = (index * 7 + (rank * 3 + 1)).remainder(op == ReduceOp::kProduct ? 2 : 5);
      if (op == ReduceOp::kProduct) values = values + 1;
      inputs.of_rank.push_back(values.to(dtype));
    } else {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1234 + rank));
      inputs.of_rank.push_back(at::randn({count}, generator, at::kFloat).to(dtype));
    }
  }
  inputs.op = op;
  inputs.expected = reduced(inputs, op);
  if (!exact || op == ReduceOp::kAvg) {
    inputs.magnitude = at::zeros({count}, at::kDouble);
    for (const auto& input : inputs.of_rank) inputs.magnitude += input.to(at::kDouble).abs();
  }
  return inputs;
}

std::string compare_reduced(const at::Tensor& got, const Inputs& inputs, std::int64_t begin) {
  const auto count = got.numel();
  const auto dtype = inputs.of_rank.front().scalar_type();
  if (got.scalar_type() != dtype) return "the type changed";
  const at::Tensor expected = inputs.expected.narrow(0, begin, count);
  const bool rounds = inputs.op == ReduceOp::kAvg;
  if (inputs.exact && !rounds) return compare_equal(got.reshape({-1}), expected.to(dtype));
  const at::Tensor magnitude = inputs.magnitude.narrow(0, begin, count);
  const double n = static_cast<double>(inputs.of_rank.size());
  const at::Tensor off = (got.reshape({-1}).to(at::kDouble) - expected).abs();
  const at::Tensor allowed = magnitude * (n * epsilon(dtype)) / (rounds ? n : 1.0) + 1e-300;
  if (count == 0 || (off <= allowed).all().item<bool>()) return "";
  std::ostringstream text;
  text << "off by " << off.max().item<double>() << ", allowed " << allowed.max().item<double>();
  return text.str();
}

std::string compare_equal(const at::Tensor& got, const at::Tensor& expected) {
  if (!got.defined()) return "no tensor";
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
