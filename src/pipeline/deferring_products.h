#pragma once

#include <tessera/intercept/operator_call.h>
#include <tessera/intercept/split_product.h>

#include <memory>

namespace tessera::pp {

/// Runs a product whose weight is a parameter, and leaves the parameter's gradient for later. False: it is no such
/// product, and did not run.
bool run_deferring(intercept::OperatorCall& call, const std::shared_ptr<intercept::DeferredGradients>& deferred);

}  // namespace tessera::pp
