#include "data_parallel/hooks/quantise.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace tessera::data_parallel {
namespace {

constexpr double kLargest = 127;

// On the CPU so many blocks at a time: what lies between two passes stays in the cache.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 17;

std::int64_t blocks_at_a_time(const at::Tensor& values, const QuantisedRow& row) {
  if (!values.is_cpu()) return std::max<std::int64_t>(row.num_blocks, 1);
  return std::max<std::int64_t>(kValuesAtATime / row.block, 1);
}

at::Tensor values_of(const at::Tensor& bytes, const QuantisedRow& row) {
  return bytes.narrow(0, 0, row.num_values()).view({row.num_blocks, row.block});
}

at::Tensor scales_of(const at::Tensor& bytes, const QuantisedRow& row) {
  const std::int64_t begin = row.num_values();
  return bytes.narrow(0, begin, row.num_bytes() - begin).view(at::kFloat).unsqueeze(1);
}

at::Tensor scales_for(const at::Tensor& values) {
  const at::Tensor largest = at::linalg_vector_norm(values, std::numeric_limits<double>::infinity(), {1}, true);
  at::Tensor scales = (largest / kLargest).to(at::kFloat);
  // Of subnormal scales too little is left to divide by. What such a block holds is kept as lost.
  return scales.masked_fill_(scales < std::numeric_limits<float>::min(), 0);
}

void quantise_blocks(at::Tensor values, at::Tensor bytes, at::Tensor scale_bytes) {
  const at::Tensor scales = scales_for(values);
  scale_bytes.copy_(scales);
  const at::Tensor finite = scales.isfinite();
  // Asking costs a synchronisation on a device; there the repair is cheap.
  const bool repair = !values.is_cpu() || !finite.all().item<bool>();
  if (repair) values.masked_fill_(finite.logical_not(), 0);
  const at::Tensor usable = finite.logical_and(scales > 0);
  const at::Tensor exact = at::where(usable, scales, 0.0F).to(values.scalar_type());
  const at::Tensor rounded = (values / exact.masked_fill(usable.logical_not(), 1)).round_();
  // Without a scale the quotient is the value itself: below anything that rounds to one.
  bytes.copy_(rounded);
  values.addcmul_(rounded, exact, -1);
}

}  // namespace

void quantise(at::Tensor values, const QuantisedRow& row, const at::Tensor& bytes) {
  const at::Tensor value_bytes = values_of(bytes, row);
  const at::Tensor scale_bytes = scales_of(bytes, row);
  const std::int64_t step = blocks_at_a_time(values, row);
  for (std::int64_t begin = 0; begin < row.num_blocks; begin += step) {
    const std::int64_t count = std::min(step, row.num_blocks - begin);
    quantise_blocks(values.narrow(0, begin, count), value_bytes.narrow(0, begin, count),
                    scale_bytes.narrow(0, begin, count));
  }
}

void add_dequantised(at::Tensor sum, const QuantisedRow& row, const at::Tensor& bytes) {
  const at::Tensor value_bytes = values_of(bytes, row);
  const at::Tensor scales = scales_of(bytes, row).to(sum.scalar_type());
  const std::int64_t step = blocks_at_a_time(sum, row);
  for (std::int64_t begin = 0; begin < row.num_blocks; begin += step) {
    const std::int64_t count = std::min(step, row.num_blocks - begin);
    sum.narrow(0, begin, count)
        .addcmul_(value_bytes.narrow(0, begin, count).to(sum.scalar_type()), scales.narrow(0, begin, count));
  }
}

void dequantise_into(const at::Tensor& values, const QuantisedRow& row, const at::Tensor& bytes, at::ScalarType dtype) {
  const std::int64_t num_full = values.numel() / row.block;
  const std::int64_t num_rest = values.numel() % row.block;
  const at::Tensor value_bytes = values_of(bytes, row);
  const at::Tensor scales = scales_of(bytes, row).to(dtype);
  at::Tensor full = values.narrow(0, 0, num_full * row.block).view({num_full, row.block});
  at::mul_out(full, value_bytes.narrow(0, 0, num_full), scales.narrow(0, 0, num_full));
  if (num_rest == 0) return;
  at::Tensor rest = values.narrow(0, num_full * row.block, num_rest);
  at::mul_out(rest, value_bytes.select(0, num_full).narrow(0, 0, num_rest), scales.select(0, num_full));
}

}  // namespace tessera::data_parallel
