#pragma once

#include <tessera/comm/world.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::testing {

/// Values between -2 and 2 that differ with the rank and the step, of no low rank as a matrix.
inline at::Tensor sample_gradient(at::IntArrayRef shape, int rank, int step, at::ScalarType dtype = at::kFloat) {
  const std::int64_t length = c10::multiply_integers(shape);
  const at::Tensor i = at::arange(length, at::kDouble);
  const at::Tensor values = (i * i * 0.0137 + 0.7 * step + 1.3 * rank).sin() + (i * 0.731 + rank).cos();
  return values.reshape(shape).to(dtype);
}

/// A bucket with copies of these gradients. Its divisor is 1: set it.
inline GradientBucket bucket_of(std::size_t index, const std::vector<at::Tensor>& gradients) {
  GradientBucket bucket;
  bucket.index = index;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& gradient : gradients) rows.push_back(gradient.reshape(-1));
  bucket.flat = at::cat(rows);
  std::int64_t begin = 0;
  for (const at::Tensor& gradient : gradients) {
    bucket.gradients.push_back(bucket.flat.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
  return bucket;
}

/// Starts and finishes one bucket with the divisor that is usual.
inline at::Tensor reduce(GradientHook& hook, GradientBucket bucket, const Communicator& comm) {
  bucket.divisor = comm.size();
  return hook.start(bucket, comm)();
}

/// The mean over the ranks that `gradients_of(rank)` describes, in double.
template <class GradientsOf>
at::Tensor exact_mean(int num_ranks, GradientsOf gradients_of) {
  at::Tensor sum;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const at::Tensor flat = bucket_of(0, gradients_of(rank)).flat.to(at::kDouble);
    sum = sum.defined() ? sum + flat : flat;
  }
  return sum / num_ranks;
}

inline double largest_error(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
}

/// Equal on all ranks, NaNs included: compares bytes.
inline void expect_same_bits(const at::Tensor& result, const Communicator& comm) {
  const at::Tensor bytes = result.contiguous().view(at::kByte).unsqueeze(0);
  const at::Tensor all = comm.all_gather(bytes);
  EXPECT_TRUE(at::equal(all, bytes.expand_as(all))) << "rank " << comm.rank() << " of " << comm.size();
}

}  // namespace tessera::testing
