#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// The tensors of all ranks, made by each rank alone from the same rule.
struct Inputs {
  std::vector<at::Tensor> of_rank;
  bool exact = true;  ///< small integers: every result is exact
  ReduceOp op = ReduceOp::kSum;
  at::Tensor expected;  ///< of the reduction by `op`, in double or int64
  at::Tensor allowed;   ///< how far off each element may be, where results are rounded: else undefined
};

/// `count` elements on each of `num_ranks` ranks. Exact ones are 0..4, or 1 and 2 for a product; the others normal.
/// Inexact sums may be off by n * eps * the sum of magnitudes. Those of the ranks are on `device`, what is expected on
/// the CPU. Ranks that are threads share what they get on the CPU: not to be written to. Thread-safety: yes.
Inputs make_inputs(at::ScalarType dtype, std::int64_t count, int num_ranks, bool exact, ReduceOp op,
                   const at::Device& device = at::kCPU);

/// Empty if `got` is the reduction of elements [begin, ...), else what is wrong.
std::string compare_reduced(const at::Tensor& got, const Inputs& inputs, std::int64_t begin = 0);
/// Empty if both are the same to the bit, wherever they are.
std::string compare_equal(const at::Tensor& got, const at::Tensor& expected);

/// Nearly equal pieces with the ceiling first; the last may be short or empty.
std::vector<std::int64_t> ceiling_pieces(std::int64_t count, int num_ranks);

}  // namespace tessera::testing
