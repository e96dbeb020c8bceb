#pragma once

#include <tessera/data_parallel/gradient_hook.h>

#include <string>

#include "support/require.h"

namespace tessera::testing {

/// Gets its gradients divided, and only adds them up.
class SumHook : public GradientHook {
 public:
  std::string name() const override { return "sum"; }
  bool takes_divided(const Communicator& /*comm*/) const override { return true; }
  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    require_equal(bucket.divisor, 1, "the gradients come divided");
    return [work = comm.all_reduce_async(bucket.flat), flat = bucket.flat]() mutable {
      work.wait();
      return flat;
    };
  }
};

}  // namespace tessera::testing
