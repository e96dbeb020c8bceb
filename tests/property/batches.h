#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "property/user.h"

namespace tessera::testing {

/// Numbers between -1 and 1 that look random, without a generator of theirs.
at::Tensor wave(double phase, at::IntArrayRef shape);

/// The batch of that number of a rank, where the user's model is.
Batch make_batch(const User& user, std::int64_t number, int part);
at::Tensor loss_of(const at::Tensor& output);
/// In training mode.
at::Tensor loss_of(User& user, std::int64_t number, int part);
/// In evaluation mode.
at::Tensor output_of(User& user, std::int64_t number);

/// Each once.
std::vector<at::Tensor> parameters_of(User& user);
at::Tensor parameter_of(User& user, std::int64_t number);
/// No gradients, of the model and of what is trained.
void clear(User& user);

}  // namespace tessera::testing
