#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::testing::sim {

/// As `resize_`: on the device, by a copy on its stream where the memory must grow.
const at::Tensor& resize_on_sim(const at::Tensor& tensor, at::IntArrayRef sizes,
                                std::optional<at::MemoryFormat> format);

}  // namespace tessera::testing::sim
