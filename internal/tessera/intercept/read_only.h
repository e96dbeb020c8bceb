#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::intercept {

/// A tensor with the values of `copy` that cannot be written to, nor can its views: an operator that would do so throws
/// a ConfigError with `why`. For a copy that a program may take for a view of the original, to which a write would be
/// lost. All else is as with `copy`, gradients too.
/// `original`, if it is given: what it was copied from. Once that was written to, the copy is out of date, and an
/// operator that reads it throws.
at::Tensor make_read_only(at::Tensor copy, std::string why, const at::Tensor& original = {});

}  // namespace tessera::intercept
